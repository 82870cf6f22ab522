"""Two processes claim to be one node: the older one must respond (docs/reference/faults.md)."""

import math
from collections.abc import Callable

from msgspec import Struct

from ..protocol.messages import Attend, NodeSpec


def next_identity(node_id: str, is_taken: Callable[[str], bool]) -> str:
    """Return the next free identity: the same name with a higher number."""
    name, _, number = node_id.rpartition("/")
    if not name or not (number.isascii() and number.isdecimal()):
        name, number = node_id, "0"
    following = int(number) + 1
    while is_taken(f"{name}/{following}"):
        following += 1
    return f"{name}/{following}"


class Newcomer(Struct):
    """A node that claims an identity whose holder has been challenged."""

    link: int
    attend: Attend
    rival: NodeSpec
    deadline: float


class Contest:
    """Newcomers that wait for a response of the node whose identity they claim."""

    def __init__(self) -> None:
        self._newcomers: dict[int, Newcomer] = {}

    def open(self, link: int, attend: Attend, rival: NodeSpec, deadline: float) -> None:
        """Let a newcomer wait until ``deadline`` for its rival's response."""
        self._newcomers[link] = Newcomer(link, attend, rival, deadline)

    def waits(self, link: int) -> bool:
        """Return whether a newcomer is waiting on this stream."""
        return link in self._newcomers

    def withdraw(self, link: int) -> None:
        """Forget a newcomer whose stream has ended."""
        self._newcomers.pop(link, None)

    def postpone(self, rival: NodeSpec, until: float) -> bool:
        """Set the deadline of all newcomers with this rival; return whether there are any."""
        newcomers = self._against(rival)
        for newcomer in newcomers:
            newcomer.deadline = until
        return bool(newcomers)

    def lost(self, rival: NodeSpec) -> list[Newcomer]:
        """Remove and return the newcomers whose rival has responded."""
        return self._take(self._against(rival))

    def won(self, now: float) -> list[Newcomer]:
        """Remove and return the newcomers whose rival has not responded in time."""
        return self._take([n for n in self._newcomers.values() if n.deadline <= now])

    def dissolve(self) -> list[Newcomer]:
        """Remove and return all newcomers, at the end of the job."""
        return self._take(list(self._newcomers.values()))

    def deadline(self) -> float | None:
        """Return the earliest deadline; None if there is none."""
        first = min((n.deadline for n in self._newcomers.values()), default=math.inf)
        return first if first < math.inf else None

    def _against(self, rival: NodeSpec) -> list[Newcomer]:
        return [n for n in self._newcomers.values() if n.rival == rival]

    def _take(self, newcomers: list[Newcomer]) -> list[Newcomer]:
        for newcomer in newcomers:
            del self._newcomers[newcomer.link]
        return newcomers
