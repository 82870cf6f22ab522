"""Measures a speed on a shared machine: limited in time, best of many. Does not import torch.

Work is divided into pieces of about a millisecond, less than a scheduler's time slice, and the best
piece counts. A neighbor on the same core interrupts some pieces but never all, so it does not make
the node fail. The node's own limits count: a CPU quota (cgroup) lowers the speed to its sustained
value (``cpu_share``), even if a busy machine leaves less than that.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ..launcher.machine.cpu_limit import quota_cpus
from .records import Level, Phase

Clock = Callable[[], float]

_LEAST_REPETITIONS: Final = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """Time limit of each measurement, in seconds, and the maximum size of a message."""

    compute_s: float
    memory_s: float
    copy_s: float
    latency_s: float
    bandwidth_s: float
    message_max_bytes: int
    """The largest all-reduce."""
    memory_bytes: int
    """The buffer to copy on a CPU. Its pages and the copy's are touched first, which takes
    several times as long as the measurement if many nodes share a host."""


BUDGETS: Final = {
    Level.LIGHT: Budget(0.25, 0.1, 0.1, 0.2, 0.5, 64 << 20, 32 << 20),
    Level.FULL: Budget(2.0, 1.0, 1.0, 1.0, 3.0, 512 << 20, 256 << 20),
}


def needed_s(level: Level, phase: Phase) -> float:
    """Return the minimum time of all measurements of a phase, in seconds.

    It does not include the time to meet, to open a device or to import torch.
    """
    budget = BUDGETS[level]
    meeting_s = budget.latency_s + budget.bandwidth_s
    match phase:
        case Phase.SOLO:
            return budget.compute_s + budget.memory_s + budget.copy_s + budget.bandwidth_s
        case Phase.PAIR | Phase.SUSPECTS:
            return meeting_s
    return 0.0


def cpu_share(workers: int) -> float:
    """Return the sustained fraction of a CPU, at most 1, for each of this many busy workers."""
    return min(1.0, (quota_cpus() or math.inf) / workers)


def best_time_s(
    run: Callable[[], object], budget_s: float, *, clock: Clock = time.perf_counter
) -> float:
    """Return the best time of ``run`` in seconds, of as many calls as fit ``budget_s``.

    At least three calls are made. The work of ``run`` must be complete when it returns.
    """
    times: list[float] = []
    start = before = clock()
    while len(times) < _LEAST_REPETITIONS or before - start < budget_s:
        run()
        now = clock()
        times.append(now - before)
        before = now
    return max(min(times), 1e-9)


def settled_time_s(
    timed: Callable[[], float],
    budget_s: float,
    *,
    after: Callable[[], object] = lambda: None,
    clock: Clock = time.perf_counter,
) -> float:
    """Return the settled time of a piece: the median of the second half of at least three pieces.

    The first pieces of a device with its own clock and cooling are faster than its sustained speed.
    ``timed`` runs a piece and returns its seconds; ``after`` is called after each, and not timed.
    """
    times: list[float] = []
    start = clock()
    while len(times) < _LEAST_REPETITIONS or clock() - start < budget_s:
        times.append(timed())
        after()
    return max(median(times[len(times) // 2 :]), 1e-9)


def largest_within(
    sizes: Sequence[int],
    time_s: Callable[[int], float],
    target_s: float,
) -> int:
    """Return the first of the growing ``sizes`` whose work takes ``target_s``, or the last one."""
    for size in sizes[:-1]:
        if time_s(size) >= target_s:
            return size
    return sizes[-1]
