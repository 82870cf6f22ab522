"""What is said before nodes go away, so that all ranks leave the state of one step. Values only."""

from typing import Annotated

from ...values import dataclass
from .bounded import Count, Reason, Seconds, Whole
from .offer import STEP_MAX


@dataclass(frozen=True, slots=True)
class Notice:
    """This node will be gone soon (SIGTERM, a notice of its cloud): the ranks may leave one state.

    It is said again on each stream, until the node leaves.
    """

    reason: Reason
    seconds: Seconds
    """How long they may take, from now."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Every worker of this node has left its share of the state of one step, and waits."""

    round: Count
    step: Annotated[int, Whole(-1, STEP_MAX)]
    """How many steps were done; -1: the workers keep no state, or have kept it themselves."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Nodes will be gone soon: have the workers leave one state, then answer ``Drained``."""

    round: int
    reason: str
    """Which node, and why."""
    seconds: float
    """How long they may take, from now."""
    is_whole: bool
    """All nodes of the round will be gone: nothing that is in memory stays."""


@dataclass(frozen=True, slots=True)
class MayLeave:
    """All ranks have left the state of one step: a node that will be gone may leave now."""

    round: int
    step: int
    """As in ``Drained``."""
