"""Two processes claim to be one node: the older is asked to answer (docs/faults.md). Pure."""

from dataclasses import dataclass

from .messages import Attend


@dataclass(slots=True)
class Newcomer:
    """A node that claims an identity whose holder has been asked to answer."""

    link: int
    attend: Attend
    rival_id: str
    deadline: float


class Contest:
    """The newcomers who wait for the answer of the node whose identity they claim."""

    def __init__(self) -> None:
        self._newcomers: dict[int, Newcomer] = {}

    def open(self, link: int, attend: Attend, rival_id: str, deadline: float) -> None:
        """Let a newcomer wait until ``deadline`` for its rival's answer."""
        self._newcomers[link] = Newcomer(link, attend, rival_id, deadline)

    def withdraw(self, link: int) -> None:
        """Forget a newcomer whose stream is gone."""
        self._newcomers.pop(link, None)

    def rival_gone(self, rival_id: str, now: float) -> None:
        """The rival's stream broke: it will not answer, so nobody need wait longer."""
        for newcomer in self._newcomers.values():
            if newcomer.rival_id == rival_id:
                newcomer.deadline = now

    def lost(self, rival_id: str) -> list[Newcomer]:
        """Remove and return the newcomers whose rival has answered."""
        return self._take([n for n in self._newcomers.values() if n.rival_id == rival_id])

    def won(self, now: float) -> list[Newcomer]:
        """Remove and return the newcomers whose rival has not answered in time."""
        return self._take([n for n in self._newcomers.values() if n.deadline <= now])

    def deadline(self) -> float | None:
        """Return when the first of them has waited long enough."""
        return min((n.deadline for n in self._newcomers.values()), default=None)

    def _take(self, newcomers: list[Newcomer]) -> list[Newcomer]:
        for newcomer in newcomers:
            del self._newcomers[newcomer.link]
        return newcomers
