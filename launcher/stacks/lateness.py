"""When a worker is late, and when that could next be: the rule without clock and files. Pure."""

from collections.abc import Mapping

from ...values import dataclass
from ..processes.worker_watch import Progress

AUTO_LEAST_S = 60.0
_AUTO_TIMES = 10
"""``auto``: so many times the longest time between two steps, and no less than that."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the pages of the workers say."""

    late: tuple[int, ...]
    """The ranks that have become late, each told once."""
    idle_s: float
    """How long ago the last of these got on."""
    again_at: float
    """When a worker could be late next."""


class Lateness:
    """Which workers of a node have shown no progress for too long. Times in seconds."""

    def __init__(self, timeout_s: float, start_s: float) -> None:
        """Begin; call ``begin`` with each round.

        Args:
            timeout_s: how long a worker may show no progress; 0: by the longest time so far.
            start_s: how long it may take to the first step.
        """
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._longest_s = 0.0
        """Between two signs of progress, of all workers here in all rounds."""
        self._begun = self._since = 0.0
        self._told: dict[int, int] = {}
        """Late ranks that were told, and how often they had shown progress."""

    def begin(self, now: float) -> None:
        """The workers of a round have been started."""
        self._begun = now
        self.excuse(now)

    def excuse(self, now: float) -> None:
        """Those that are late do not hang: their time starts again."""
        self._since = now
        self.repeat()

    def repeat(self) -> None:
        """Tell of those that are late once more."""
        self._told.clear()

    def look(self, workers: Mapping[int, Progress | None], now: float) -> Look:
        """Return which workers are late.

        Args:
            workers: by rank, those that run; None: nothing is known of it.
            now: the time, as in ``Progress.last_s``.
        """
        known = {rank: progress for rank, progress in workers.items() if progress is not None}
        longest = [progress.longest_s for progress in known.values()]
        self._longest_s = max(self._longest_s, *longest, 0.0)
        shortest_s = self._timeout_s or max(AUTO_LEAST_S, _AUTO_TIMES * self._longest_s)
        late: dict[int, float] = {}
        again_at = now + shortest_s  # one that begins only now could be late then
        for rank, progress in known.items():
            limit_s = shortest_s if self._is_under_way(progress) else self._start_s
            due = max(self._since, progress.last_s or 0.0) + limit_s
            if due > now:
                again_at = min(again_at, due)
            elif self._told.get(rank) != progress.ticks:
                self._told[rank] = progress.ticks
                late[rank] = now - (progress.last_s or self._begun)
        return Look(tuple(sorted(late)), min(late.values(), default=0.0), again_at)

    def _is_under_way(self, progress: Progress) -> bool:
        """Whether it is known how long a step takes, if that matters."""
        return progress.ticks > 0 and bool(self._timeout_s or self._longest_s)
