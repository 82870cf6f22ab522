"""Idle time of the CPUs that this process may use.

Sources: ``/proc/stat`` (proc(5)), and the cgroup with the tightest CPU quota, if there is one.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from .cgroups import read_text
from .cpu_limit import allowed_cpus, quota_cpus, quota_used_s
from .numa import read_topology

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER, _IDLE, _STEAL = 0, 3, 7
"""Columns of a CPU; the fourth is idle time, the fifth is time waiting for I/O."""
_LEAST_S = 1.0
"""Minimum time between two reads; clock ticks are 10 ms."""
_SEEN = 0.5
"""Share of the time that the kernel must account for: some sandboxes show zeros."""


class IdleCpus:
    """The sum of idle CPU time, between reads that are some seconds apart."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._allowed = allowed_cpus()
        quota, core_of = quota_cpus(root), read_topology(root).core_of
        self.cpus = min(float(len(self._allowed)), quota or float("inf"))
        """How many CPUs can be busy simultaneously."""
        cores = len({core_of.get(cpu, cpu) for cpu in self._allowed})
        self.cores = max(1, min(cores, int(self.cpus)))
        """How many physical cores can be busy simultaneously."""
        self._last: tuple[float, float, float, float | None] | None = None
        self._sum_s = 0.0

    def read(self) -> float:
        """Return the idle seconds of all CPUs since the first call; -1 if unknown."""
        now_s = self._clock()
        if self._last is not None and now_s - self._last[0] < _LEAST_S:
            return self._sum_s
        idle_s, all_s = self._machine()
        used_s = quota_used_s(self._root) if self.cpus < len(self._allowed) else None
        last, self._last = self._last, (now_s, idle_s, all_s, used_s)
        if last is None or self._sum_s < 0:
            return self._sum_s
        passed_s = now_s - last[0]
        if all_s - last[2] < _SEEN * passed_s * len(self._allowed):
            self._sum_s = -1.0
            return -1.0
        idle_s = max(0.0, idle_s - last[1])
        if self.cpus < len(self._allowed):
            if used_s is None or last[3] is None:
                self._sum_s = -1.0
                return -1.0
            idle_s = min(idle_s, max(0.0, passed_s * self.cpus - (used_s - last[3])))
        self._sum_s += idle_s
        return self._sum_s

    def _machine(self) -> tuple[float, float]:
        """Return idle and total seconds of the CPUs that this process may run on."""
        idle = total = 0
        for line in read_text(self._root / "proc/stat").split("\n"):
            name, *words = line.split() or [""]
            number = name.removeprefix("cpu")
            if name.startswith("cpu") and number.isdecimal() and int(number) in self._allowed:
                ticks = [int(word) for word in words[_USER : _STEAL + 1]]
                idle += sum(ticks[_IDLE : _IDLE + 2])
                total += sum(ticks)
        return idle / _TICKS_PER_S, total / _TICKS_PER_S
