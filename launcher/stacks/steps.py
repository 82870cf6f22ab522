"""How many steps the workers of this node have done; read from their pages, they are not asked."""

import time
from collections.abc import Iterable, Iterator

from ...rendezvous.protocol.steps import RATE_MAX, STEPS_MAX, RankSteps, StepsReport
from .collect import AskedWorker


def rank_steps(workers: Iterable[AskedWorker]) -> Iterator[RankSteps]:
    """Yield the steps of those that have shown progress.

    Args:
        workers: that have not exited.
    """
    now = time.monotonic()
    for worker in workers:
        progress = worker.watch.progress() if worker.watch is not None else None
        if progress is not None and progress.last_s is not None:
            steps = min(progress.steps, STEPS_MAX)
            idle_s = max(0.0, now - progress.last_s)
            yield RankSteps(worker.rank, steps, min(progress.steps_per_s, RATE_MAX), idle_s)


def steps_report(
    number: int, workers: Iterable[AskedWorker], checkpoint: tuple[int, float]
) -> StepsReport:
    """Return the answer to the master's question.

    Args:
        number: of the question.
        workers: that have not exited.
        checkpoint: of the newest one that this node has completed, the step and the age in seconds.
    """
    step, age_s = checkpoint
    return StepsReport(number, tuple(rank_steps(workers)), min(step, STEPS_MAX), age_s)
