"""Counts the steps of each rank over its workers, from their progress at each scrape. No I/O."""

from collections.abc import Iterable

from msgspec import Struct

from ..processes.worker_watch import Progress


class _Rank(Struct):
    """The values of the last scrape."""

    pid: int
    is_reported: bool
    """Whether the script reports its steps; if not, they are counted from 0."""
    steps: int
    total: int


class StepCounts:
    """The steps that ranks have done."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def update(self, found: Iterable[tuple[int, Progress]]) -> dict[int, int]:
        """Return the steps of each rank that has ever made progress.

        A script that reports its steps starts with any number, and goes back after a failure: its
        first report is its first step.
        """
        for rank, now in found:
            if not now.ticks:
                continue
            is_reported = now.furthest >= 0
            before = self._ranks.get(rank)
            total = 0 if before is None else before.total
            is_same = before is not None and before.pid == now.pid
            if before is not None and is_same and before.is_reported == is_reported:
                total += max(0, now.steps - before.steps)
            elif not is_reported:
                total += now.steps
            else:  # steps of the same process before the first report have been counted
                total += max(0, now.steps - now.first + (not is_same))
            self._ranks[rank] = _Rank(now.pid, is_reported, now.steps, total)
        return {rank: known.total for rank, known in self._ranks.items()}
