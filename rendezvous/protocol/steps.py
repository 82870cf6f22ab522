"""The number of steps of each rank, for ``ft-run status``."""

from typing import Annotated

from msgspec import Struct

from .bounds import OF_A_NODE, Count, Real, Seconds, Whole

STEPS_MAX = 10**15
"""Higher numbers are sent as this one."""
RATE_MAX = 1e12


class RankSteps(Struct, frozen=True):
    """The steps of one rank."""

    rank: Count
    steps: Annotated[int, Whole(0, STEPS_MAX)]
    """Finished steps, as counted or as the script reports."""
    steps_per_s: Annotated[float, Real(RATE_MAX)]
    """Recent rate, as of the last step."""
    idle_s: Seconds
    """Seconds since the last progress."""
    data_wait: Annotated[float, Real(1.0)] = 0.0
    """Recent share of the time that it waited for data; 0 if none, or unknown."""


class StepsOrder(Struct, frozen=True):
    """The master's request; the node replies with ``StepsReport``."""

    number: Count


class StepsReport(Struct, frozen=True):
    """The ranks of one node that have made progress, and its newest checkpoint."""

    number: Count
    """Number of the order."""
    workers: Annotated[tuple[RankSteps, ...], OF_A_NODE]
    checkpoint_step: Annotated[int, Whole(0, STEPS_MAX)] = 0
    """Step of the newest checkpoint that this node has completed; 0 if none."""
    checkpoint_age_s: Seconds = 0.0
    """Seconds since its completion."""
