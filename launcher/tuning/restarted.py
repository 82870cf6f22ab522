"""Which values are worth a restart of all workers. Pure."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...training.worker.tuned_values import OMP_NUM_THREADS, key_of
from .tuner import Knob


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


def _others(values: Sequence[Any], present: Any) -> Sequence[Any]:
    return [value for value in dict.fromkeys(values) if value != present]
