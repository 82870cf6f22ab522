"""The floors of a job as texts, which all its nodes must have alike, and as metrics. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import Metrics


def floor_texts(floors: Mapping[str, float]) -> tuple[str, ...]:
    """Return floors as all nodes of a job must have them: ``compute_tflops=500.0``."""
    return tuple(f"{name}={value}" for name, value in floors.items())


def floor_names(texts: Collection[str]) -> set[str]:
    """Return the metrics that such texts are about."""
    return {text.partition("=")[0] for text in texts}


def floors(texts: Sequence[str]) -> "Metrics":
    """Return the floors that such texts stand for.

    Raises:
        ValueError: one of them names no metric or no number.
    """
    from .records import Metrics  # which the command line of a plain job does not need

    values = {}
    for text in texts:
        name, _, number = text.partition("=")
        values[name] = float(number)
    try:
        return Metrics(**values)
    except TypeError as error:
        raise ValueError(f"no such metric: {error}") from error
