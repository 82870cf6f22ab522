"""Settings of a ``DataLoader`` and the values of them that are worth a trial. No I/O, no clock."""

from collections.abc import Sequence
from functools import partial

from .tuner import Knob

NUM_WORKERS, PREFETCH = SETTINGS = "num_workers", "prefetch_factor"
_PREFETCH_MAX = 16
"""Each prefetched batch takes memory of the host."""


def of_loader(cpus: float, workers: int) -> tuple[Knob, ...]:
    """Return the settings of a loader.

    Args:
        cpus: the CPU limit of this node.
        workers: the number of training processes on it, which share these CPUs.
    """
    most = max(1, int(cpus / workers))
    return (
        Knob(NUM_WORKERS, partial(_beside, most=most)),
        Knob(PREFETCH, partial(_beside, most=_PREFETCH_MAX)),
    )


def _beside(value: int, *, most: int) -> Sequence[int]:
    found = [] if value >= most else [min(2 * value, most)]
    if value > 1:
        found.append(value // 2)
    return found
