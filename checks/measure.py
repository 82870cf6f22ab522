"""Measures a speed on a shared machine: bounded in time, best of many. No torch.

Work is divided into pieces of about a millisecond, less than a scheduler's time slice, and the best
piece counts. A neighbour that shares a core interrupts some pieces but never all, so that it does
not make the node fail. The node's own limits count: a CPU quota (cgroup) lowers the speed in
proportion to the time that it took away, or would have, if the process had the CPU for itself.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from ..launcher.machine.cgroups import own_directories
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
    """The buffer that is copied, on a CPU. Its pages and those of the copy are touched first,
    which takes several times as long as the measurement where many nodes share a host."""


BUDGETS: Final = {
    Level.LIGHT: Budget(0.25, 0.1, 0.1, 0.2, 0.5, 64 << 20, 32 << 20),
    Level.FULL: Budget(2.0, 1.0, 1.0, 1.0, 3.0, 512 << 20, 256 << 20),
}


def needed_s(level: Level, phase: Phase) -> float:
    """Return the minimum time in seconds of all measurements of a phase together.

    The time to meet, to open a device or to import torch is not included.
    """
    budget = BUDGETS[level]
    meeting_s = budget.latency_s + budget.bandwidth_s
    match phase:
        case Phase.SOLO:
            return budget.compute_s + budget.memory_s + budget.copy_s + budget.bandwidth_s
        case Phase.PAIR | Phase.SUSPECTS:
            return meeting_s
    return 0.0


class QuotaWatch:
    """Reads the CPU quotas of this process's cgroups, and for how long they throttled it.

    Sources: ``throttled_usec`` of cgroup v2's ``cpu.stat``, ``throttled_time`` (ns) of v1's.
    """

    def __init__(self, directories: Sequence[Path] = (), share: float = 1.0) -> None:
        """Watch the cgroups in ``directories``: this process's own and those above it.

        Args:
            directories: the directories of their files.
            share: the sustained fraction of a CPU that this process gets, above 0 and at most 1.
        """
        self._files = [directory / "cpu.stat" for directory in directories]
        self.share = share

    @staticmethod
    def of_workers(count: int) -> "QuotaWatch":
        """Watch the cgroups of this process, one of ``count`` workers that are busy at once."""
        share = min(1.0, (quota_cpus() or math.inf) / count)
        return QuotaWatch(own_directories(Path("/"), "cpu"), share)

    def throttled_s(self) -> float:
        """Return the throttled seconds so far, of all CPUs together; 0 where nothing is known."""
        return sum(map(_throttled_s, self._files))


def _throttled_s(file: Path) -> float:
    try:
        lines = file.read_text(encoding="ascii").split("\n")
    except (OSError, ValueError):
        return 0.0
    for line in lines:
        name, _, number = line.partition(" ")
        if name in ("throttled_usec", "throttled_time") and number.isdecimal():
            return int(number) / (1e6 if name == "throttled_usec" else 1e9)
    return 0.0


def best_time_s(
    run: Callable[[], object],
    budget_s: float,
    quota: QuotaWatch,
    *,
    clock: Clock = time.perf_counter,
) -> float:
    """Return the time of one ``run``: the best of as many as fit the budget.

    Under a CPU quota the time of the best piece is increased by the share of time that the quota
    took away, but never beyond the average, which includes every interruption: per-CPU times of a
    quota add up to more than the elapsed time. ``time = min(average, best / (1 - throttled /
    elapsed))``. It is also never less than the quota's sustained rate allows, ``best /
    quota.share``: on a busy machine this process may not get as much of a CPU as its quota, which
    then takes nothing away.

    Args:
        run: one piece of work, complete when it returns.
        budget_s: time limit of the repetitions in seconds; at least three are made.
        quota: provides the throttled time.
        clock: seconds from any origin.
    """
    times: list[float] = []
    throttled_s = quota.throttled_s()
    start = before = clock()
    while True:
        run()
        now = clock()
        times.append(now - before)
        before = now
        if now - start >= budget_s and len(times) >= _LEAST_REPETITIONS:
            break
    elapsed_s = max(before - start, 1e-9)
    share = 1.0 - (quota.throttled_s() - throttled_s) / elapsed_s
    best, average = max(min(times), 1e-9), max(elapsed_s / len(times), 1e-9)
    observed = best / share if share > best / average else average
    return max(observed, best / quota.share)


def settled_time_s(
    timed: Callable[[], float],
    budget_s: float,
    *,
    after: Callable[[], object] = lambda: None,
    clock: Clock = time.perf_counter,
) -> float:
    """Return the settled time of a piece: the median of the second half of the pieces.

    For a device with its own clock and cooling: its first pieces are faster than its sustained
    speed.

    Args:
        timed: carries out one piece and returns its seconds.
        budget_s: time limit in seconds; at least three pieces are made.
        after: is called after each piece, and not timed.
        clock: seconds from any origin.
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
    """Return the first of the growing ``sizes`` whose work takes ``target_s``, or the last one.

    The first is always tried; each size is timed once.
    """
    for size in sizes[:-1]:
        if time_s(size) >= target_s:
            return size
    return sizes[-1]
