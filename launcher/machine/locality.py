"""The CPUs near a GPU. Memory that they touch first is on the GPU's NUMA node."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .cpu_limit import parse_cpus

_ROOT = Path("/")


def near_cpus(address: str, root: Path = _ROOT) -> set[int]:
    """Return the CPUs of a PCI device's NUMA node; empty if the kernel does not report it."""
    with suppress(OSError, ValueError):
        file = root / "sys/bus/pci/devices" / address / "local_cpulist"
        return set(parse_cpus(file.read_text(encoding="ascii")))
    return set()


@contextmanager
def near(address: str | None, root: Path = _ROOT) -> Iterator[None]:
    """Run on the allowed CPUs near a PCI device, if any; restore the affinity at the end."""
    before = os.sched_getaffinity(0)
    chosen = before & near_cpus(address, root) if address is not None else before
    if not chosen or chosen == before:
        yield
        return
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
