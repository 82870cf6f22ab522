"""The phases of a node, the activities of its workers, and the time in each."""

import enum
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct, field

_ACTIVITIES_MAX: Final = 32

K = TypeVar("K")


class Phase(enum.Enum):
    """What a node does; exactly one of these, or an ``Activity``, at a time."""

    STARTING = "starting ft-run"
    WAITING = "waiting for nodes"
    STANDING_BY = "standing by"
    """As a spare."""
    CHECKING = "checking"
    SPAWNING = "starting workers"
    BUILDING = "importing and building"
    """Until workers join, or else until the first step; only of workers that are watched."""
    JOINING = "joining"
    """In ``init_process_group``; this phase and the next four: only of workers that are watched."""
    RESTORING = "restoring"
    """In ``Checkpointer.restore``."""
    FIRST_STEP = "first step"
    """From the end of joining or restoring to the first completed step, e.g. compilation."""
    TRAINING = "training"
    """From the first step on."""
    SAVING = "saving"
    """Training waits for a snapshot or a checkpoint."""
    RUNNING = "running"
    """Workers that are not watched: what they do is not known."""
    HANGING = "no progress"
    """From the suspicion to the decision; the idle time before it is in the phase before."""
    DRAINING = "draining"
    STOPPING = "stopping"
    """Workers exit, or are stopped."""
    SUSPENDED = "suspended"
    ENDED = "between attempts"


class Activity(Struct, frozen=True):
    """What workers do other than training, as the script names it."""

    value: str


Spent: TypeAlias = Phase | Activity
"""What time is counted as."""

OTHERS: Final = Activity("other activities")
"""Activities beyond the first ones."""
_OF_WORKERS: Final = {
    phase.value: phase
    for phase in (
        *(Phase.BUILDING, Phase.JOINING, Phase.RESTORING, Phase.FIRST_STEP, Phase.TRAINING),
        *(Phase.SAVING, Phase.STOPPING),
    )
}


class Activities:
    """The activities of a job, as many as a table may have."""

    def __init__(self) -> None:
        self._known: dict[str, Activity] = {}

    def find(self, name: str) -> Spent:
        """Return what a worker calls by a name."""
        found = _OF_WORKERS.get(name) or self._known.get(name)
        if found is None:
            if len(self._known) >= _ACTIVITIES_MAX:
                return OTHERS
            found = self._known[name] = Activity(name)
        return found


class Account(Struct):
    """Where the time went. All times in seconds."""

    phases: dict[Spent, float] = field(default_factory=dict)
    restarts: dict[str, float] = field(default_factory=dict)
    """By kind of the failure, as ``Failure`` has it in a record."""
    restart_phases: dict[Spent, float] = field(default_factory=dict)
    """Of ``phases``: from failures to the next training (or start of workers not watched)."""
    lost: dict[str, float] = field(default_factory=dict)
    """Training that was lost, by kind of the failure."""
    overlapping: dict[str, float] = field(default_factory=dict)
    """Of the training: ``DATA_WAIT`` and, over all attempts, ``SLOW_STEPS``, where known."""

    @property
    def seconds(self) -> float:
        """The time of all phases."""
        return sum(self.phases.values())

    @property
    def goodput(self) -> float | None:
        """Share of the time in which steps were done that were kept; None: not known.

        It counts each step once: those that are done again after a failure were lost before.
        """
        if Phase.RUNNING in self.phases or self.seconds <= 0:
            return None  # workers that do not report their steps
        kept_s = self.phases.get(Phase.TRAINING, 0.0) - sum(self.lost.values())
        return max(0.0, kept_s) / self.seconds  # steps of an earlier ft-run may be lost

    def since(self, before: "Account") -> "Account":
        """Return the part of this account that an earlier one lacks."""
        fields = self.__struct_fields__
        return Account(*(_less(getattr(self, one), getattr(before, one)) for one in fields))

    def copy(self) -> "Account":
        """Return a copy, which does not change."""
        return self.since(Account())


def _less(amounts: dict[K, float], less: dict[K, float]) -> dict[K, float]:
    rest = {key: amount - less.get(key, 0.0) for key, amount in amounts.items()}
    return {key: amount for key, amount in rest.items() if amount > 0}


def add(amounts: dict[K, float], key: K, more: float) -> None:
    """Add to one of several amounts, if there is something to add."""
    if more > 0:
        amounts[key] = amounts.get(key, 0.0) + more
