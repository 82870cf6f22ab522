"""The link of an agent to its master, independent of the transport."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..protocol.messages import Attend, MasterMessage, NodeMessage, RoomMessage
from ..protocol.offer import Offer
from .master import Master


class LinkUp(Struct, frozen=True):
    """The master has received the node's ``Attend``."""

    again: bool
    """Whether the link was up before."""
    opened_s: float = math.inf
    """When its stream was opened (``fencing.now``)."""


class LinkDown(Struct, frozen=True):
    """The master is unreachable; the link retries. Reported after each attempt."""

    reason: str
    left_s: float = 0.0
    """Seconds until the link gives up."""
    hosts: tuple[str, ...] = ()
    """Last answer of each of several listed hosts, after they have been tried for a while."""


class LinkLost(Struct, frozen=True):
    """The link has ended: the master was unreachable for too long, or the peer is not a master."""

    sentence: str


LinkEvent = MasterMessage | LinkUp | LinkDown | LinkLost


class MasterLink(Protocol):
    """A link to the master. It passes its events to the callback it was created with."""

    def send(self, message: NodeMessage) -> None:
        """Send a message; dropped while disconnected, as ``Attend`` and the claims have it all."""

    async def close(self) -> None:
        """Flush pending messages, give the master a moment to end the stream, then end it."""


class LocalLink:
    """The link of an agent whose master is in the same process."""

    def __init__(
        self,
        master: Master,
        attend: Callable[[], Attend],
        on_event: Callable[[LinkEvent], None],
        meet: Callable[[str], bool] = lambda _: False,
        claims: Callable[[], Sequence[RoomMessage]] = tuple,
    ) -> None:
        """Attach the agent to the master.

        ``attend`` returns the first message, with the current offer, and ``claims`` the messages
        directly after it (``Attend.claims``). ``meet`` is called with the address of each node that
        joins, and returns whether the address that this node offers changes.
        """
        self._master = master
        self._on_event = on_event
        self._attend, self._meet = attend, meet
        self._loop = asyncio.get_running_loop()
        self._link = master.attach(self._deliver, self._renewed)
        others = claims()
        self.send(replace(attend(), claims=len(others)))
        for claim in others:
            self.send(claim)

    def _renewed(self, other: Attend) -> Offer | None:
        return self._attend().offer if self._meet(other.node.address) else None

    def send(self, message: NodeMessage) -> None:
        """Pass a message to the master, in a later iteration of the event loop."""
        self._loop.call_soon(self._master.receive, self._link, message)

    async def close(self) -> None:
        """Detach after pending messages."""
        await asyncio.sleep(0)
        self._master.detach(self._link)

    def _deliver(self, message: MasterMessage | None) -> None:
        if message is not None:
            self._loop.call_soon(self._on_event, message)
