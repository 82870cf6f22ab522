"""How many steps each rank has done: what ``ft-run status`` asks the nodes. Values only."""

from ...values import dataclass

STEPS_MAX = 10**15
"""What is higher is told as this."""
RATE_MAX = 1e12


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Of one rank."""

    rank: int
    steps: int
    """Done, as counted or as the script says."""
    steps_per_s: float
    """Of late, when the last one was done."""
    idle_s: float
    """Since the last sign of progress."""


@dataclass(frozen=True, slots=True)
class StepsOrder:
    """The master's question; the node answers with ``StepsReport``."""

    number: int


@dataclass(frozen=True, slots=True)
class StepsReport:
    """The ranks of one node that have shown progress."""

    number: int
    """The order's."""
    workers: tuple[RankSteps, ...]
