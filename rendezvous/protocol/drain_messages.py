"""Messages before a planned change of the world, so that all ranks first save one snapshot.

Nodes are being preempted, or the world grows.
"""

from typing import Annotated

from msgspec import Struct

from .bounds import Count, LongText, Reason, Seconds, Whole
from .offer import STEP_MAX


class Notice(Struct, frozen=True):
    """This node is being preempted (SIGTERM, or its cloud's notice): all ranks can save first.

    It is sent again on each stream, until the node leaves.
    """

    reason: Reason
    seconds: Seconds
    """Time limit, from now."""


class Drained(Struct, frozen=True):
    """Every worker of this node has saved its share of the state of one step, and waits."""

    round: Count
    step: Annotated[int, Whole(-1, STEP_MAX)]
    """Number of completed steps; -1 if the workers keep no state, or have saved it themselves."""
    number: Count = 0
    """Number of the order."""
    is_fixed: bool = False
    """Nothing was saved, because only this number of ranks can load the workers' state."""


class Drain(Struct, frozen=True):
    """The world is about to change: save a consistent snapshot, then reply with ``Drained``."""

    round: Count
    reason: LongText
    """Which node is being preempted and why, or the sizes of the worlds."""
    seconds: Seconds
    """Time limit, from now."""
    is_whole: bool
    """All nodes of the round are being preempted, so nothing in memory survives."""
    resizes: bool = False
    """The next world has a different size, so sharded state in memory cannot be used."""
    grows: bool = False
    """No node leaves: the round is stopped for a larger world."""
    number: Count = 0
    """Differs from that of a canceled order of the round."""


class CancelDrain(Struct, frozen=True):
    """The world does not grow: the workers continue. It does not cancel a preemption."""

    round: Count
    number: Count = 0
    """Number of the next order, which is not canceled if it has arrived before."""


class MayLeave(Struct, frozen=True):
    """All ranks have saved the state of one step: a node that is being preempted can leave now."""

    round: Count
    step: Annotated[int, Whole(-1, STEP_MAX)]
    """As in ``Drained``."""
