"""The report that each rank sends to the others at the end of a step."""

from enum import IntEnum
from typing import NamedTuple


class Missing(IntEnum):
    """Whether a rank has no shard of the newest snapshot."""

    NOTHING = 0
    THIS_ONE = 1
    """The copy of this step failed."""
    ALL = 2
    """This rank has no memory for snapshots: all ranks stop taking them."""


class StepReport(NamedTuple):
    """Numbers of one rank, or the maximum of each over all ranks."""

    snapshot_is_due: int = 0
    """1: the time of ``snapshot_every`` has elapsed."""
    checkpoint_is_due: int = 0
    """1: the time of ``checkpoint_every`` has elapsed."""
    saver_is_busy: int = 0
    """1: the previous checkpoint is still being written."""
    notice: int = 0
    """What the notice of the agent asks for: ``Notice.code``."""
    loader: int = 0
    """The settings that ``--auto-tune on`` wants (``worker/tuning_page.py``), of one rank only."""
    lacks_plan: int = 0
    """1: the shards of the newest snapshot have no common metadata yet."""
    missing: int = Missing.NOTHING
