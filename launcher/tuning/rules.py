"""The numbers of ``--auto-tune on``."""

from msgspec import Struct


class Rules(Struct, frozen=True):
    """How long is measured, what counts as faster, and what it may cost."""

    skip_steps: int = 20
    """After a switch so many steps are not measured, ..."""
    skip_s: float = 10.0
    """... and at least this time."""
    block_steps: int = 50
    """A block has at least so many steps, ..."""
    block_s: float = 20.0
    """... and takes at least this time."""
    pause_s: float = 60.0
    """From the six blocks of a trial to the two that confirm them."""
    block_gain: float = 0.02
    """Each block with the new value takes at least this share less than each with the old one."""
    median_gain: float = 0.05
    """The median of the blocks takes at least this share less."""
    cost_share: float = 0.01
    """Of the training time so far, for switches and slower blocks."""
    trials_max: int = 12
    wait_share: float = 0.05
    """Of the training time that goes to waiting for data, below which loaders stay as they are."""
    disturbed_max: int = 20
    """Blocks of a trial that may be disturbed by checkpoints and activities."""


RULES = Rules()
