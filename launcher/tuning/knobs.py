"""Which values are worth a trial: of a ``DataLoader``, and those that restart all workers. Pure."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...training.worker.tuned_values import OMP_NUM_THREADS, key_of
from .tuner import Knob

NUM_WORKERS, PREFETCH = "num_workers", "prefetch_factor"
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


def threads(cores: int, workers: int) -> Knob:
    """Return ``OMP_NUM_THREADS``.

    Args:
        cores: physical cores that this node may use.
        workers: the number of training processes on it, which share them.
    """
    most = max(1, cores // workers)
    return Knob(OMP_NUM_THREADS, partial(_others, (most, max(1, most // 2), 1)), restarts=True)


def of_script(name: str, values: Sequence[Any]) -> Knob:
    """Return a value of the script, for which it has named others (``tuned``)."""
    return Knob(key_of(name), partial(_others, tuple(values)), restarts=True)


def _beside(value: int, *, most: int) -> Sequence[int]:
    """Return twice and half a value, of those that differ from it and are >= 1."""
    found = [] if value >= most else [min(2 * value, most)]
    if value > 1:
        found.append(value // 2)
    return found


def _others(values: Sequence[Any], present: Any) -> Sequence[Any]:
    return [value for value in dict.fromkeys(values) if value != present]
