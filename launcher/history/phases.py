"""The phases of a node, the activities of its workers, and the time in each."""

import enum
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct, field

_ACTIVITIES_MAX: Final = 32

K = TypeVar("K")


class Phase(enum.Enum):
    """A node's state; at any time it is exactly one of these, or an ``Activity``."""

    STARTING = "starting ft-run"
    WAITING = "waiting for nodes"
    STANDING_BY = "standing by"
    """As a spare."""
    CHECKING = "checking"
    SPAWNING = "starting workers"
    BUILDING = "importing and building"
    """Until workers join, or else until the first step; only for watched workers."""
    JOINING = "joining"
    """In ``init_process_group``; this phase and the next four are only for watched workers."""
    RESTORING = "restoring"
    """In ``Checkpointer.restore``."""
    FIRST_STEP = "first step"
    """From the end of joining or restoring to the first completed step, e.g. compilation."""
    TRAINING = "training"
    SAVING = "saving"
    """Training waits for a snapshot or a checkpoint."""
    RUNNING = "running"
    """Unwatched workers: their activity is unknown."""
    HANGING = "no progress"
    """From the suspicion to the decision; the idle time before belongs to the previous phase."""
    DRAINING = "draining"
    STOPPING = "stopping"
    SUSPENDED = "suspended"
    ENDED = "between attempts"


class Activity(Struct, frozen=True):
    """An activity of workers other than training, with the script's name for it."""

    value: str


Spent: TypeAlias = Phase | Activity

OTHERS: Final = Activity("other activities")
_OF_WORKERS: Final = {
    phase.value: phase
    for phase in (
        *(Phase.BUILDING, Phase.JOINING, Phase.RESTORING, Phase.FIRST_STEP, Phase.TRAINING),
        *(Phase.SAVING, Phase.STOPPING),
    )
}


class Activities:
    """The activities of a job, up to the maximum number in a table."""

    def __init__(self) -> None:
        self._known: dict[str, Activity] = {}

    def find(self, name: str) -> Spent:
        """Return the category for a worker's name of an activity."""
        found = _OF_WORKERS.get(name) or self._known.get(name)
        if found is None:
            if len(self._known) >= _ACTIVITIES_MAX:
                return OTHERS
            found = self._known[name] = Activity(name)
        return found


class Account(Struct):
    """Where the time went. All times are in seconds."""

    phases: dict[Spent, float] = field(default_factory=dict)
    restarts: dict[str, float] = field(default_factory=dict)
    """Number of restarts by kind of the failure, as in ``Failure`` in a record."""
    restart_phases: dict[Spent, float] = field(default_factory=dict)
    """Part of ``phases`` from failures to the next training (or start of unwatched workers)."""
    lost: dict[str, float] = field(default_factory=dict)
    """Lost training by kind of the failure."""
    overlapping: dict[str, float] = field(default_factory=dict)
    """Part of the training: ``DATA_WAIT`` and, over all attempts, ``SLOW_STEPS``, if known."""

    @property
    def seconds(self) -> float:
        """The total time of all phases."""
        return sum(self.phases.values())

    @property
    def goodput(self) -> float | None:
        """Share of the time spent on steps that were kept, each counted once; None if unknown."""
        if Phase.RUNNING in self.phases or self.seconds <= 0:
            return None  # workers do not report their steps
        kept_s = self.phases.get(Phase.TRAINING, 0.0) - sum(self.lost.values())
        return max(0.0, kept_s) / self.seconds  # steps of an earlier ft-run may be lost

    def since(self, before: "Account") -> "Account":
        """Return the difference from an earlier account."""
        fields = self.__struct_fields__
        return Account(*(_less(getattr(self, one), getattr(before, one)) for one in fields))

    def copy(self) -> "Account":
        """Return a copy, which does not change."""
        return self.since(Account())


def _less(amounts: dict[K, float], less: dict[K, float]) -> dict[K, float]:
    rest = {key: amount - less.get(key, 0.0) for key, amount in amounts.items()}
    return {key: amount for key, amount in rest.items() if amount > 0}


def add(amounts: dict[K, float], key: K, more: float) -> None:
    """Add to one of several amounts, unless ``more`` is 0 or less."""
    if more > 0:
        amounts[key] = amounts.get(key, 0.0) + more
