"""The steps that the workers of this node have completed, read from their shared pages."""

import time
from collections.abc import Iterable, Iterator

from ...rendezvous.protocol.steps import RATE_MAX, STEPS_MAX, RankSteps, StepsReport
from .collect import AskedWorker


def rank_steps(workers: Iterable[AskedWorker]) -> Iterator[RankSteps]:
    """Yield the steps of the workers that have shown progress."""
    now = time.monotonic()
    for worker in workers:
        progress = worker.watch.progress() if worker.watch is not None else None
        if progress is not None and progress.last_s is not None:
            steps = min(progress.steps, STEPS_MAX)
            idle_s = max(0.0, now - progress.last_s)
            rate, data_wait = min(progress.steps_per_s, RATE_MAX), progress.data_wait
            yield RankSteps(worker.rank, steps, rate, idle_s, data_wait)


def steps_report(
    number: int, workers: Iterable[AskedWorker], checkpoint: tuple[int, float]
) -> StepsReport:
    """Return the reply to the master's request."""
    step, age_s = checkpoint
    return StepsReport(number, tuple(rank_steps(workers)), min(step, STEPS_MAX), age_s)
