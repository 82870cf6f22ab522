"""Whether one value is faster than another, from the times of blocks of steps. Pure."""

from collections.abc import Sequence
from statistics import median

from .rules import RULES

ORDER = "ABBAAB"
"""The blocks of a trial: old value (A), new value (B). What drifts evenly hits both alike."""
CONFIRMATION = "AB"


def is_faster(old: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether all blocks with the new value, and their median, are fast enough.

    With a single pair of blocks, both conditions are about the same numbers.

    Args:
        old: seconds a step of the blocks with the old value; at least one.
        new: of those with the new value; at least one.
    """
    return may_be_faster(old, new) and median(new) <= (1 - RULES.median_gain) * median(old)


def may_be_faster(old: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether more blocks can still show that the new value is faster."""
    return not old or not new or max(new) <= (1 - RULES.block_gain) * min(old)


def gain(old: Sequence[float], new: Sequence[float]) -> float:
    """Return how much faster the new value is, as a share: 0.1 are 10 % more steps a second."""
    return median(old) / median(new) - 1
