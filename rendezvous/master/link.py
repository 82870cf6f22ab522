"""What an agent has in its hand: a link to its master, whatever is between them."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ...values import dataclass, field
from ..protocol.messages import Attend, MasterMessage, NodeMessage
from .master import Master


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The master has the node's ``Attend``."""

    again: bool
    """It was up before."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The master is away; the link tries to reach it again. It is said after each attempt."""

    reason: str
    left_s: float = field(default=0.0, compare=False)
    """Seconds until the link gives up."""
    hosts: tuple[str, ...] = field(default=(), compare=False)
    """What each of several listed hosts has answered, once they have been asked for a while."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The master stayed away for too long, or what answers is no master: the link has ended."""

    sentence: str


LinkEvent = MasterMessage | LinkUp | LinkDown | LinkLost


class MasterLink(Protocol):
    """A link to the master. What happens on it is given to the callback it was made with."""

    def send(self, message: NodeMessage) -> None:
        """Send a message; it is dropped while the master is away, since ``Attend`` tells all."""

    async def close(self) -> None:
        """Deliver what was sent, wait a moment for the master to end the stream, then end it."""


class LocalLink:
    """The link of an agent whose master is in the same process."""

    def __init__(
        self,
        master: Master,
        attend: Callable[[], Attend],
        on_event: Callable[[LinkEvent], None],
    ) -> None:
        self._master = master
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._link = master.attach(self._deliver)
        self.send(attend())

    def send(self, message: NodeMessage) -> None:
        """Give a message to the master, after the caller has finished its turn."""
        self._loop.call_soon(self._master.receive, self._link, message)

    async def close(self) -> None:
        """Detach after what was sent."""
        await asyncio.sleep(0)
        self._master.detach(self._link)

    def _deliver(self, message: MasterMessage | None) -> None:
        if message is not None:
            self._loop.call_soon(self._on_event, message)
