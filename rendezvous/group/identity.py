"""Two processes claim to be one node: the older must answer (docs/reference/faults.md). Pure."""

import math
from collections.abc import Callable

from msgspec import Struct

from ..protocol.messages import Attend, NodeSpec


def next_identity(node_id: str, is_taken: Callable[[str], bool]) -> str:
    """Return the first identity after one, with the same name and a higher number, that is free."""
    name, _, number = node_id.rpartition("/")
    if not name or not (number.isascii() and number.isdecimal()):
        name, number = node_id, "0"
    following = int(number) + 1
    while is_taken(f"{name}/{following}"):
        following += 1
    return f"{name}/{following}"


class Newcomer(Struct):
    """A node that claims an identity whose holder has been asked to answer."""

    link: int
    attend: Attend
    rival: NodeSpec
    deadline: float


class Contest:
    """The newcomers that wait for the answer of the node whose identity they claim."""

    def __init__(self) -> None:
        self._newcomers: dict[int, Newcomer] = {}

    def open(self, link: int, attend: Attend, rival: NodeSpec, deadline: float) -> None:
        """Let a newcomer wait until ``deadline`` for its rival's answer."""
        self._newcomers[link] = Newcomer(link, attend, rival, deadline)

    def waits(self, link: int) -> bool:
        """Return whether a newcomer waits on this stream."""
        return link in self._newcomers

    def withdraw(self, link: int) -> None:
        """Forget a newcomer whose stream is gone."""
        self._newcomers.pop(link, None)

    def postpone(self, rival: NodeSpec, until: float) -> bool:
        """Let those that wait for a rival wait until then; return whether there are any."""
        newcomers = self._against(rival)
        for newcomer in newcomers:
            newcomer.deadline = until
        return bool(newcomers)

    def lost(self, rival: NodeSpec) -> list[Newcomer]:
        """Remove and return the newcomers whose rival has answered."""
        return self._take(self._against(rival))

    def won(self, now: float) -> list[Newcomer]:
        """Remove and return the newcomers whose rival has not answered in time."""
        return self._take([n for n in self._newcomers.values() if n.deadline <= now])

    def dissolve(self) -> list[Newcomer]:
        """Remove and return all newcomers: the job is over."""
        return self._take(list(self._newcomers.values()))

    def deadline(self) -> float | None:
        """Return when the first of them has waited long enough; None where there is no limit."""
        first = min((n.deadline for n in self._newcomers.values()), default=math.inf)
        return first if first < math.inf else None

    def _against(self, rival: NodeSpec) -> list[Newcomer]:
        return [n for n in self._newcomers.values() if n.rival == rival]

    def _take(self, newcomers: list[Newcomer]) -> list[Newcomer]:
        for newcomer in newcomers:
            del self._newcomers[newcomer.link]
        return newcomers
