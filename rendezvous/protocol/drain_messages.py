"""What is sent before the world changes as planned: all ranks save a consistent snapshot first.

Nodes are being preempted, or the world grows. Values only.
"""

from typing import Annotated

from msgspec import Struct

from .bounds import Count, LongText, Reason, Seconds, Whole
from .offer import STEP_MAX


class Notice(Struct, frozen=True):
    """This node is being preempted (SIGTERM, a notice of its cloud): all ranks may save first.

    It is sent again on each stream, until the node leaves.
    """

    reason: Reason
    seconds: Seconds
    """How long they may take, from now."""


class Drained(Struct, frozen=True):
    """Every worker of this node has left its share of the state of one step, and waits."""

    round: Count
    step: Annotated[int, Whole(-1, STEP_MAX)]
    """How many steps were done; -1: the workers keep no state, or have kept it themselves."""
    number: Count = 0
    """Of the order."""
    is_fixed: bool = False
    """Nothing was saved: only this number of ranks can load the workers' state."""


class Drain(Struct, frozen=True):
    """The world is about to change: have all ranks save a consistent snapshot.

    The answer is ``Drained``.
    """

    round: Count
    reason: LongText
    """Which node is being preempted and why, or the sizes of the worlds."""
    seconds: Seconds
    """How long they may take, from now."""
    is_whole: bool
    """All nodes of the round are being preempted: nothing in memory survives."""
    resizes: bool = False
    """The next world has another size: sharded state in memory does not count there."""
    grows: bool = False
    """No node leaves: the round is stopped for a larger world."""
    number: Count = 0
    """Another one after an order of the round that was cancelled."""


class CancelDrain(Struct, frozen=True):
    """The world does not grow: the workers continue. It does not cancel a preemption."""

    round: Count
    number: Count = 0
    """Of the next order, which is not cancelled if it has come before."""


class MayLeave(Struct, frozen=True):
    """All ranks have saved the state of one step: a node that is being preempted may leave now."""

    round: Count
    step: Annotated[int, Whole(-1, STEP_MAX)]
    """As in ``Drained``."""
