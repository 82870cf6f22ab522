"""How many steps each rank has done: what ``ft-run status`` asks the nodes. Values only."""

from typing import Annotated

from ...values import dataclass
from .bounded import OF_A_NODE, Count, Real, Seconds, Whole

STEPS_MAX = 10**15
"""What is higher is told as this."""
RATE_MAX = 1e12


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Of one rank."""

    rank: Count
    steps: Annotated[int, Whole(0, STEPS_MAX)]
    """Done, as counted or as the script says."""
    steps_per_s: Annotated[float, Real(RATE_MAX)]
    """Of late, when the last one was done."""
    idle_s: Seconds
    """Since the last sign of progress."""


@dataclass(frozen=True, slots=True)
class StepsOrder:
    """The master's question; the node answers with ``StepsReport``."""

    number: int


@dataclass(frozen=True, slots=True)
class StepsReport:
    """The ranks of one node that have shown progress, and what is durable."""

    number: Count
    """The order's."""
    workers: Annotated[tuple[RankSteps, ...], OF_A_NODE]
    checkpoint_step: Annotated[int, Whole(0, STEPS_MAX)] = 0
    """Of the newest checkpoint that this node has completed; 0: none."""
    checkpoint_age_s: Seconds = 0.0
    """Since it is complete."""
