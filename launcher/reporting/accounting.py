"""Where the time of a node went: a fold over its events, without clock or I/O.

Each second since the start is in exactly one phase, and the seconds of a phase only grow. What a
failure throws away (training after the step to which the job goes back) is a quantity of its own,
charged to the failure when it is known.

The events are those of one node, in order, of one ``ft-run`` or of several that the scheduler
started one after the other. Durations within one ``ft-run`` are those of ``uptime_s``, which
no clock change affects; the time between two is that of the wall clock.
"""

import enum
from typing import Final, TypeVar

from ...events.record import Record
from ...values import dataclass, field, names
from .accounted import NAMES, STOPS
from .kept_steps import KeptSteps


class Phase(enum.Enum):
    """What a node does; exactly one of these at a time."""

    STARTING = "starting ft-run"
    WAITING = "waiting for nodes"
    STANDING_BY = "standing by"
    """As a spare."""
    CHECKING = "checking"
    SPAWNING = "starting workers"
    BUILDING = "importing and building"
    """Until the first step; only of workers that are watched."""
    TRAINING = "training"
    """From the first step on; only of workers that are watched."""
    RUNNING = "running"
    """Workers that are not watched: what they do is not known."""
    HANGING = "no progress"
    """From the suspicion to the decision; the idle time before it is in the phase before."""
    DRAINING = "draining"
    STOPPING = "stopping"
    SUSPENDED = "suspended"
    ENDED = "between attempts"


IN_ROUND: Final = frozenset(
    {
        *(Phase.SPAWNING, Phase.BUILDING, Phase.TRAINING, Phase.RUNNING),
        *(Phase.HANGING, Phase.DRAINING, Phase.STOPPING),
    }
)
_MAY_DRAIN: Final = IN_ROUND - {Phase.STOPPING}
_MAY_HANG: Final = frozenset({Phase.BUILDING, Phase.TRAINING, Phase.RUNNING})
_DAYS_TO_1970: Final = 719_469

K = TypeVar("K")


def _add(amounts: dict[K, float], key: K, more: float) -> None:
    if more > 0:
        amounts[key] = amounts.get(key, 0.0) + more


def _less(amounts: dict[K, float], less: dict[K, float]) -> dict[K, float]:
    rest = {key: amount - less.get(key, 0.0) for key, amount in amounts.items()}
    return {key: amount for key, amount in rest.items() if amount > 0}


@dataclass(slots=True)
class Account:
    """Where the time went. All times in seconds."""

    phases: dict[Phase, float] = field(default_factory=dict)
    restarts: dict[str, float] = field(default_factory=dict)
    """By kind of the failure, as ``Failure`` has it in a record."""
    restart_phases: dict[Phase, float] = field(default_factory=dict)
    """Of ``phases``: from failures to the next training (or start of workers not watched)."""
    lost: dict[str, float] = field(default_factory=dict)
    """Training that was lost, by kind of the failure."""

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
        return Account(*(_less(getattr(self, one), getattr(before, one)) for one in names(Account)))

    def copy(self) -> "Account":
        """Return a copy, which does not change."""
        return self.since(Account())


class Accounting:
    """The fold; ``add`` records in order."""

    def __init__(self) -> None:
        """Start before the first event."""
        self.phase = Phase.STARTING
        self.node_rank = -1
        """In the last round of this node; -1: there was none."""
        self._uptime_s = 0.0
        self._wall_s: float | None = None
        """The time of the last event by the wall clock; None: there was none."""
        self._is_started = False
        self._total, self._before = Account(), Account()
        """Since the first start, and until the last one."""
        self._is_watched = False
        self._since_stop: dict[Phase, float] | None = None
        """The time since training stopped, if it is not known yet whether it restarts."""
        self._is_restarting = False
        self._before_hang = Phase.RUNNING
        self._idle_s = 0.0
        """Of the current training, the time before the suspicion of a hang."""
        self._cause = ""
        """The kind of the last failure."""
        self._kept = KeptSteps()
        self._step, self._training_s = -1, 0.0
        """Steps at the start of the current training, and its time."""

    def add(self, record: Record) -> None:
        """Take the next event of the node."""
        if record["name"] not in NAMES:
            return
        self._pass_time(record)
        match record["name"]:
            case "agent.started":
                self._is_started, self.phase = True, Phase.WAITING
            case "agent.waiting":
                is_spare = record["waiting"]["spare"]
                self._wait(Phase.STANDING_BY if is_spare else Phase.WAITING)
            case "checks.progressed":
                self._wait(Phase.CHECKING)
            case "checks.ended":
                self._wait(Phase.WAITING)
            case "round.started":
                self._round_started(record)
            case "workers.started" if self.phase is Phase.SPAWNING:
                self._workers_started()
            case "training.started" if self.phase is Phase.BUILDING:
                self._training_started(record["step"])
            case "round.progressed" if self.phase is Phase.TRAINING:
                self._has_done(record["steps"])
            case "hang.suspected" if self.phase in _MAY_HANG:
                self._idle_s = min(record["idle_s"], self._training_s)
                self._before_hang = self.phase
                self._interrupt(Phase.HANGING)
            case "hang.dismissed" if self.phase is Phase.HANGING:
                self._dismissed()
            case "agent.preempted" | "drain.ordered" if self.phase in _MAY_DRAIN:
                self._interrupt(Phase.DRAINING)
            case "round.ended":
                self._round_ended(record)
            case "restart.decided":
                self._restart(record["cause"]["kind"])
            case "regroup.decided":
                self._cause, self._since_stop = "regroup", None
            case name if name in STOPS and self.phase in IN_ROUND:
                self._interrupt(Phase.STOPPING)

    def account(self, now_s: float = 0.0, *, of_all: bool = False) -> Account:
        """Return where the time went.

        Args:
            now_s: until then, as ``uptime_s``, or until the last event if that is later.
            of_all: since the first start, not only that of the last ft-run. Its ``goodput`` is
                the effective training time ratio (ETTR).
        """
        since_s = max(0.0, now_s - self._uptime_s)
        account = self._total.since(Account() if of_all else self._before)
        _add(account.phases, self.phase, since_s)
        if self._is_restarting:
            _add(account.restart_phases, self.phase, since_s)
        return account

    @property
    def lost_s(self) -> float:
        """Training that was lost since the first start; unlike ``account``, it changes nothing."""
        return sum(self._total.lost.values())

    # --- time --------------------------------------------------------------------------------

    def _pass_time(self, record: Record) -> None:
        uptime_s, wall_s = record["uptime_s"], seconds_of(record["time"])
        is_again = record["name"] == "agent.started" and self._is_started
        if uptime_s < self._uptime_s or is_again:
            self._start_again(wall_s - uptime_s)
        passed_s = uptime_s - self._uptime_s
        if record["name"] == "host.suspended":
            suspended_s = min(passed_s, record["seconds"])
            self._spend(Phase.SUSPENDED, suspended_s)
            passed_s -= suspended_s
        self._spend(self.phase, passed_s)
        self._uptime_s, self._wall_s = uptime_s, wall_s

    def _spend(self, phase: Phase, seconds: float) -> None:
        _add(self._total.phases, phase, seconds)
        if self._is_restarting:
            _add(self._total.restart_phases, phase, seconds)
        elif self._since_stop is not None:
            _add(self._since_stop, phase, seconds)
        if phase is Phase.TRAINING:
            self._training_s += seconds

    def _start_again(self, wall_s: float) -> None:
        """Another ft-run has started, at ``wall_s``: nothing of the one before runs."""
        self._end_training(-1)
        self._trains()  # whatever it was doing about a failure has ended
        if self._wall_s is not None:
            self._spend(Phase.ENDED, max(0.0, wall_s - self._wall_s))
        self._before = self._total.copy()
        self._uptime_s, self._is_started = 0.0, False
        self.phase, self._cause = Phase.STARTING, "requeue"

    # --- what happened -----------------------------------------------------------------------

    def _wait(self, phase: Phase) -> None:
        if self.phase not in IN_ROUND:
            self.phase = phase

    def _round_started(self, record: Record) -> None:
        self.node_rank, self._is_watched = record["node_rank"], record["is_watched"]
        self.phase = Phase.SPAWNING
        if record["resumes_from"] >= 0:
            self._go_back(record["resumes_from"])

    def _workers_started(self) -> None:
        self.phase = Phase.BUILDING if self._is_watched else Phase.RUNNING
        if not self._is_watched:
            self._trains()

    def _training_started(self, step: int) -> None:
        self.phase = Phase.TRAINING
        self._trains()
        self._step, self._training_s, self._idle_s = step, 0.0, 0.0
        if step >= 0:
            self._go_back(step)

    def _trains(self) -> None:
        self._since_stop, self._is_restarting = None, False

    def _dismissed(self) -> None:
        self.phase, self._idle_s = self._before_hang, 0.0
        if self.phase is not Phase.BUILDING:
            self._trains()

    def _interrupt(self, phase: Phase) -> None:
        """The workers do not train any more."""
        self.phase = phase
        if self._since_stop is None:
            self._since_stop = {}

    def _round_ended(self, record: Record) -> None:
        self._end_training(record["steps"])
        if self.phase in IN_ROUND:
            self.phase = Phase.STOPPING if record["is_last"] else Phase.WAITING

    def _restart(self, cause: str) -> None:
        self._cause = cause
        _add(self._total.restarts, cause, 1)
        for phase, seconds in (self._since_stop or {}).items():
            _add(self._total.restart_phases, phase, seconds)
        self._since_stop, self._is_restarting = None, True
        if cause == "hang":
            _add(self._total.lost, cause, self._idle_s)
            self._training_s = max(0.0, self._training_s - self._idle_s)
        self._idle_s = 0.0

    def _has_done(self, step: int) -> None:
        """The workers have done ``step`` steps; -1: not known."""
        if 0 <= self._step < step:
            self._kept.trained(self._step, step, self._training_s - self._idle_s)
            self._step, self._training_s = step, 0.0

    def _end_training(self, step: int) -> None:
        self._has_done(step)
        self._step, self._training_s = -1, 0.0

    def _go_back(self, step: int) -> None:
        _add(self._total.lost, self._cause, self._kept.back_to(step))


def seconds_of(time: str) -> float:
    """Return the Unix time of a record's ``time``: ``2026-11-25T06:38:28.123456Z``."""
    date, _, rest = time.partition("T")
    year, month, day = map(int, date.split("-"))
    hour, minute, second = rest.removesuffix("Z").split(":")
    # Days of the Gregorian calendar, in years that begin in March, so that a leap day is the last.
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day
    return (days - _DAYS_TO_1970) * 86_400.0 + int(hour) * 3600 + int(minute) * 60 + float(second)
