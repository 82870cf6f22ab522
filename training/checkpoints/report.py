"""What the ranks ask each other at the end of each step."""

from enum import IntEnum
from typing import NamedTuple


class Missing(IntEnum):
    """Whether a rank lacks its share of the newest snapshot."""

    NOTHING = 0
    THIS_ONE = 1
    """Its copy is of no use."""
    ALL = 2
    """It has no memory for snapshots: it takes none any more."""


class StepReport(NamedTuple):
    """Numbers of a rank at the end of a step; each rank is answered with the greatest of all."""

    snapshot_is_due: int = 0
    """By time."""
    checkpoint_is_due: int = 0
    """Likewise."""
    saver_is_busy: int = 0
    """It still writes the checkpoint before."""
    notice: int = 0
    """Of preemption: ``Notice.code``."""
    lacks_plan: int = 0
    """Shares of the newest snapshot are no checkpoint: no plans were made of what stands where."""
    missing: int = Missing.NOTHING
