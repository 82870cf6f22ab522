"""Reads /proc: CPU time, memory, descendants, and a mark in the environment of processes."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "FT_RUN_BENCHMARK_ID"
"""All processes of a run have this variable, so that leftovers are found and killed."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process, in MiB."""

    rss: float
    """Resident set size: shared memory is counted in full."""
    pss: float
    """Proportional set size: memory shared by n processes is counted as 1/n."""
    uss: float
    """Unique set size: memory that no other process shares."""


def stat_fields(stat: bytes) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third (state) on.

    The second, the command's name, stands in parentheses and may hold anything, ')' included.
    """
    return stat.rpartition(b")")[2].split()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, all its threads, not its children.

    The kernel's scheduler statistics have nanoseconds; without them the clock ticks must do.
    """
    nanoseconds = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError):  # it ended meanwhile
                text = Path(f"/proc/{pid}/task/{thread}/schedstat").read_bytes()
                nanoseconds += int(text.split()[0])
    except (OSError, IndexError):
        nanoseconds = 0
    return nanoseconds / 1e9 if nanoseconds else cpu_ticks_s(pid)


def wakeups(pid: int) -> int:
    """Return how often the threads of a process have been switched to: each time they wake up."""
    switches = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError):  # it ended meanwhile
            for line in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines():
                name, _, count = line.partition(":")
                if name in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"):
                    switches += int(count)
    return switches


def cpu_ticks_s(pid: int) -> float:
    """Return utime + stime in seconds, in steps of one tick; ended threads are counted too."""
    fields = stat_fields(Path(f"/proc/{pid}/stat").read_bytes())
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory(pid: int) -> Memory:
    """Return the memory of a process."""
    sizes = {"Rss": 0, "Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) * 1024
    own = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return Memory(sizes["Rss"] / _MIB, sizes["Pss"] / _MIB, own / _MIB)


def marked(mark: str) -> dict[int, int]:
    """Return process id → parent's process id of every living process that has the mark."""
    found: dict[int, int] = {}
    needle = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with suppress(OSError):
            if needle not in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                continue
            fields = stat_fields(Path(f"/proc/{name}/stat").read_bytes())
            if fields[0] not in (b"Z", b"X"):
                found[int(name)] = int(fields[1])
    return found


def helpers(agent: int, workers: set[int], parents: dict[int, int]) -> list[int]:
    """Return the agent's descendants that are neither workers nor descend from one.

    Args:
        agent: process id.
        workers: process ids.
        parents: as ``marked`` returns it.
    """
    found: list[int] = []
    for pid in sorted(parents):
        ancestor = pid
        while ancestor in parents and ancestor != agent and ancestor not in workers:
            ancestor = parents[ancestor]
        if ancestor == agent and pid != agent:
            found.append(pid)
    return found
