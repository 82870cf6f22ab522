"""The CPU limit of the container this process runs in: cgroup quotas and the affinity mask.

Formats: ``cgroups(7)``, ``proc_pid_mountinfo(5)`` and the kernel's ``admin-guide/cgroup-v2.rst``
and ``scheduler/sched-bwc.rst``.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from .cgroups import Mount, Parts, own_directory, read_membership, read_mounts, read_text

_ROOT: Final = Path("/")
_NUMBER: Final = re.compile(r"0*[1-9][0-9]{0,18}")
"""Positive, and no larger than the kernel's 64 bits."""


class CpuLimit(NamedTuple):
    """How many CPUs this process may use simultaneously, at least 1."""

    cpus: int
    source: str
    """Text for the log, e.g. ``cgroup v2 cpu.max 350000/100000 at /kubepods/pod1`` or ``affinity
    mask 0-3 of 64 CPUs``."""


class _Quota(NamedTuple):
    """The bandwidth limit of one cgroup: ``quota_us`` of CPU time in each ``period_us``."""

    quota_us: int
    period_us: int
    where: str
    directory: Path

    @property
    def ratio(self) -> float:
        return self.quota_us / self.period_us

    @property
    def cpus(self) -> int:
        """Return the CPUs that can be busy simultaneously, rounded up without floating point."""
        return max(1, -(-self.quota_us // self.period_us))


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs this process may run on (its affinity mask, cpusets included)."""
    return frozenset(os.sched_getaffinity(0))


def read_cpu_limit(root: Path = _ROOT) -> CpuLimit | None:
    """Return the tightest CPU limit on this process, or None if there is none.

    The limit is ``max(1, ceil(quota / period))`` of the tightest cgroup from this process's own up
    to the mount's root, and never above the affinity mask. A mask smaller than the machine is
    itself a limit; shares and weights never are. Missing or malformed files are ignored.
    """
    mask, total = allowed_cpus(), _count_machine_cpus(root)
    quota = _tightest_quota(root)
    if quota is not None and quota.cpus <= len(mask):
        return CpuLimit(quota.cpus, quota.where)
    if len(mask) < total:
        return CpuLimit(max(1, len(mask)), f"affinity mask {format_cpus(mask)} of {total} CPUs")
    if quota is not None:
        return CpuLimit(max(1, len(mask)), f"{quota.where}, more than the {len(mask)} CPUs here")
    return None


def quota_cpus(root: Path = _ROOT) -> float | None:
    """Return the number of CPUs of the tightest quota on this process; None if there is no quota.

    Unlike the limit, which is a number of processes, it is not rounded: a quarter of a CPU is 0.25.
    """
    quota = _tightest_quota(root)
    return None if quota is None else quota.ratio


def quota_used_s(root: Path = _ROOT) -> float | None:
    """Return the CPU time in seconds that counts against the quota; None if unknown."""
    quota = _tightest_quota(root)
    if quota is None:
        return None
    found = re.search(r"^usage_usec (\d+)$", read_text(quota.directory / "cpu.stat"), re.MULTILINE)
    if found is not None:
        return int(found[1]) / 1e6
    # v1: the quota's directory has the file if both controllers are mounted together.
    for directory in (quota.directory, own_directory(root, "cpuacct")):
        nanoseconds = read_text(directory / "cpuacct.usage").strip() if directory else ""
        if nanoseconds.isdecimal():
            return int(nanoseconds) / 1e9
    return None


def parse_cpus(text: str) -> frozenset[int]:
    """Parse CPU numbers in the kernel's list format, e.g. ``0-3,8``; raises ``ValueError``."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPU numbers in the kernel's list format: the inverse of :func:`parse_cpus`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in runs)


def _count_machine_cpus(root: Path) -> int:
    # Not os.cpu_count() first: since Python 3.13 PYTHON_CPU_COUNT overrides it, and some
    # versions of the C library count the affinity mask instead of the machine.
    try:
        online = parse_cpus(read_text(root / "sys/devices/system/cpu/online"))
    except ValueError:
        online = frozenset()
    return len(online) or os.cpu_count() or 1


def _tightest_quota(root: Path) -> _Quota | None:
    membership = read_membership(root, "cpu")
    if membership is None:
        return None
    is_v1, path = membership
    mounts = read_mounts(root, "cpu", is_v1=is_v1)
    # A hierarchy can be mounted in several places (docker-in-docker); each may show levels that the
    # others hide. If none shows this process's cgroup, the mount still belongs to the container, so
    # its root is used.
    inside = [mount for mount in mounts if mount.shows(path)]
    quotas = [quota for mount in inside or mounts for quota in _quotas(mount, path, is_v1=is_v1)]
    return min(quotas, key=lambda quota: quota.ratio, default=None)


def _quotas(mount: Mount, path: Parts, *, is_v1: bool) -> Iterator[_Quota]:
    """Yield the quota of each level of one mount, from the process's own cgroup upwards."""
    below = path[len(mount.root) :] if mount.shows(path) else ()
    for depth in range(len(below), -1, -1):
        directory = mount.point.joinpath(*below[:depth])
        if is_v1:
            name = "v1 cpu.cfs_quota_us"
            quota = read_text(directory / "cpu.cfs_quota_us").split()
            period = read_text(directory / "cpu.cfs_period_us").split()
        else:
            name = "v2 cpu.max"
            values = read_text(directory / "cpu.max").split()
            quota, period = values[:1], values[1:]
        numbers = _positive(quota), _positive(period)
        if numbers[0] is not None and numbers[1] is not None:
            level = "/" + "/".join(mount.root + below[:depth])
            where = f"cgroup {name} {numbers[0]}/{numbers[1]} at {_printable(level)}"
            yield _Quota(numbers[0], numbers[1], where, directory)


def _positive(words: list[str]) -> int | None:
    """Return the single positive number in ``words``; None for ``max``, -1, 0 and invalid text."""
    return int(words[0]) if len(words) == 1 and _NUMBER.fullmatch(words[0]) else None


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
