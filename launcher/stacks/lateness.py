"""The rule for when a worker is late, and when one could next be late. No I/O, no clock."""

from collections.abc import Mapping

from msgspec import Struct

from ..processes.worker_watch import Progress

AUTO_LEAST_S = 60.0
_AUTO_TIMES = 10
"""``auto``: this multiple of the longest time between two steps, with this minimum."""


class Look(Struct, frozen=True):
    """The late workers, according to the workers' pages."""

    late: tuple[int, ...]
    """The ranks that have become late; each is reported once."""
    idle_s: float
    """Seconds since the last progress of any of these."""
    again_at: float
    """The next time at which a worker could be late."""


class Lateness:
    """The workers of a node that have shown no progress for too long. Times in seconds.

    ``timeout_s`` is the maximum time without progress, 0 to derive it from the longest so far;
    ``start_s`` is the maximum time to the first step.
    """

    def __init__(self, timeout_s: float, start_s: float) -> None:
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._longest_s = 0.0
        """The longest time between two steps of all workers here in all rounds."""
        self._begun = self._since = 0.0
        self._reported: dict[int, int] = {}
        """The late ranks that were reported, and their number of steps at that time."""

    def begin(self, now: float) -> None:
        """Start a round, whose workers have been started."""
        self._begun = now
        self.excuse(now)

    def excuse(self, now: float) -> None:
        """Restart the time of late workers, which do not hang."""
        self._since = now
        self.repeat()

    def repeat(self) -> None:
        """Report the late workers again."""
        self._reported.clear()

    def look(self, workers: Mapping[int, Progress | None], now: float) -> Look:
        """Return the late workers at ``now``, on the clock of ``Progress.last_s``."""
        known = {rank: progress for rank, progress in workers.items() if progress is not None}
        longest = [progress.longest_s for progress in known.values()]
        self._longest_s = max(self._longest_s, *longest, 0.0)
        shortest_s = self._timeout_s or max(AUTO_LEAST_S, _AUTO_TIMES * self._longest_s)
        late: dict[int, float] = {}
        again_at = now + shortest_s  # a worker that starts a step now could be late then
        for rank, progress in known.items():
            limit_s = shortest_s if self._is_under_way(progress) else self._start_s
            due = max(self._since, progress.last_s or 0.0) + limit_s
            if due > now:
                again_at = min(again_at, due)
            elif self._reported.get(rank) != progress.ticks:
                self._reported[rank] = progress.ticks
                late[rank] = now - (progress.last_s or self._begun)
        return Look(tuple(sorted(late)), min(late.values(), default=0.0), again_at)

    def _is_under_way(self, progress: Progress) -> bool:
        """Whether the duration of a step is known, if it is needed."""
        return progress.ticks > 0 and bool(self._timeout_s or self._longest_s)
