"""Checks of the arguments of ``ElasticBatches``."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from torch.utils.data import ConcatDataset, IterableDataset

from .mixture import MIN_WEIGHT
from .order import Sources
from .seeded import Seeded


def sources_of(data: Any, weights: Sequence[float] | None) -> Sources:
    """Return the sizes of the data.

    Raises:
        TypeError: If the data has no size.
        ValueError: If a weight or a size is invalid.
    """
    if isinstance(data, IterableDataset):
        raise TypeError(
            "invalid value of type IterableDataset for data: it has no positions to begin with: "
            "expected a dataset with __len__ and __getitem__, or torchdata's StatefulDataLoader in "
            "the state of the Checkpointer"
        )
    if weights is None:
        return Sources((_size(data),), None)
    inner = data.dataset if isinstance(data, Seeded) else data
    parts = inner.datasets if isinstance(inner, ConcatDataset) else inner
    if not isinstance(parts, Sequence) or len(parts) != len(weights):
        raise ValueError(
            f"invalid value {list(weights)} for weights: expected one for each source of a "
            "ConcatDataset, or of a list of sizes"
        )
    return Sources(tuple(map(_size, parts)), _checked_weights(weights))


def _size(data: Any) -> int:
    size = data if isinstance(data, int) else len(data) if hasattr(data, "__len__") else None
    if size is None:
        raise TypeError(
            f"invalid value of type {type(data).__name__} for data: expected a dataset with a "
            "length, or a number of samples"
        )
    check_positive("data", size)
    return int(size)


def check_positive(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the value is a whole number >= 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"invalid value {value!r} for {name}: expected a whole number >= 1")


def _checked_weights(weights: Sequence[float]) -> tuple[Fraction, ...]:
    """Return shares of 1: weights in the same proportions are the same mixture."""
    try:
        found = [Fraction(str(weight)) for weight in weights]
    except ValueError:  # not finite
        found = []
    if not found or min(found) <= 0:
        raise ValueError(
            f"invalid value {list(weights)} for weights: expected finite numbers > 0, one or more"
        )
    shares = tuple(one / sum(found) for one in found)
    if min(shares) < MIN_WEIGHT:
        raise ValueError(
            f"invalid value {list(weights)} for weights: expected each to be at least a millionth "
            "of their sum"
        )
    return shares


def checked_share(share: float) -> float:
    """Return the argument ``share``; raise ``ValueError`` unless it is finite and > 0."""
    if not 0 < share < float("inf"):
        raise ValueError(f"invalid value {share!r} for share: expected a number > 0")
    return float(share)
