"""What the kernel knows of processes: CPU time, memory, and a mark in their environment."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

MARK = "FT_RUN_BENCHMARK_ID"
"""All processes of a run have this variable, so that leftovers are found and killed."""

_MIB = 1024 * 1024


class Memory(NamedTuple):
    """Memory of one process, in MiB."""

    rss: float
    """Resident set size: shared memory is counted in full."""
    pss: float
    """Proportional set size: memory shared by n processes is counted as 1/n."""
    uss: float
    """Unique set size: memory that no other process shares."""


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, all its threads, not its children.

    They come from the kernel's scheduler statistics, since a clock tick is 10 ms.
    """
    nanoseconds = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError):  # it ended meanwhile
            text = Path(f"/proc/{pid}/task/{thread}/schedstat").read_bytes()
            nanoseconds += int(text.split()[0])
    return nanoseconds / 1e9


def wakeups(pid: int) -> int:
    """Return how often the threads of a process have been switched to: each time they wake up."""
    switches = 0
    for thread in psutil.Process(pid).threads():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            switches += sum(psutil.Process(thread.id).num_ctx_switches())
    return switches


def memory(pid: int) -> Memory:
    """Return the memory of a process."""
    found = psutil.Process(pid).memory_full_info()
    return Memory(found.rss / _MIB, found.pss / _MIB, found.uss / _MIB)


def marked(mark: str) -> dict[int, int]:
    """Return process id → parent's process id of every living process that has the mark."""
    found: dict[int, int] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:  # one that has ended has none
                found[process.pid] = process.ppid()
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
