"""Waiting for nodes: until when, and what those who wait are told. Pure."""

from itertools import islice

from ..protocol.messages import JobSpec, Waiting
from .events import GroupSettings
from .roster import Roster

_MISSING_NAMED = 8
_ANNOUNCE_EVERY_S = 1.0
_REMIND_EVERY_S = 60.0
_ANNOUNCED_PER_S = 1000
"""Bounds the cost of telling everybody who is still missing while thousands of nodes join."""


class Lobby:
    """The wait before a world is formed. All times are those of the group's clock, in seconds."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self.since: float | None = None
        """When the present wait began; None while a round runs or before the first node."""
        self.announce_at: float | None = None
        self._last_arrival = 0.0

    def open(self, now: float) -> None:
        """Begin to wait."""
        self.since = now
        self.announce_at = now + _ANNOUNCE_EVERY_S

    def close(self) -> None:
        """A world has been formed, or the job is over."""
        self.since = self.announce_at = None

    def arrived(self, nodes: int, now: float) -> None:
        """Take note of a newcomer; the others hear of it soon, but not each time."""
        self._last_arrival = now
        if self.since is None:
            return
        interval = max(_ANNOUNCE_EVERY_S, nodes / _ANNOUNCED_PER_S)
        self.announce_at = min(self.announce_at or now + interval, now + interval)

    def announced(self, now: float) -> None:
        """Everybody was told; the next time is a reminder."""
        self.announce_at = now + _REMIND_EVERY_S

    def join_deadline(self) -> float | None:
        """Return when the wait is given up."""
        return None if self.since is None else self.since + self._settings.join_timeout_s

    def overdue(self, now: float) -> bool:
        """Return whether the wait has lasted too long."""
        deadline = self.join_deadline()
        return deadline is not None and deadline <= now

    def last_call(self) -> float:
        """Return when the first world stops waiting for more than its minimum."""
        return self._last_arrival + self._settings.last_call_timeout_s

    def waiting(
        self, job: JobSpec, joined: int, missing: tuple[str, ...], now: float, *, spare: bool
    ) -> Waiting:
        """Return what a waiting node is told."""
        deadline = self.join_deadline()
        return Waiting(
            joined=joined,
            min_nodes=job.min_nodes,
            max_nodes=job.max_nodes,
            missing=missing,
            timeout_s=max(0.0, deadline - now) if deadline is not None else 0.0,
            spare=spare,
        )


def missing_names(job: JobSpec, roster: Roster, former: dict[str, int]) -> tuple[str, ...]:
    """Return who is missing, where that is known: former members, or ranks never taken.

    Args:
        job: the job.
        roster: who is there.
        former: node ranks of members of the last world that are gone, by identity.
    """
    gone = (name for name in former if roster.get(name) is None)
    names = list(islice(gone, _MISSING_NAMED))
    if not names and roster.anyone_wants_a_rank():
        names = [
            f"--node-rank {rank}"
            for rank in range(min(job.max_nodes, _MISSING_NAMED * 8))
            if roster.by_wanted_rank(rank) is None
        ]
    return tuple(names[:_MISSING_NAMED])
