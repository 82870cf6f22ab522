"""Where the time of a node went: a fold over its events. No I/O, no clock.

Each second since the start is in exactly one phase, and the seconds of a phase only grow. The
activity of running workers is known only from ``round.progressed``: the time since the last one is
assigned to phases when the next one arrives, or by ``account``. Training that a failure throws away
(after the step to which the job returns) is a separate quantity, charged to the failure when it is
known.

The events are from one node, in order, from one or several consecutive runs of ``ft-run``.
Durations within a run are from ``uptime_s``, which clock changes do not affect; the time between
two runs is from the wall clock.
"""

from datetime import datetime
from typing import Final

from msgspec import Struct

from ...events.record import Record
from .accounted import NAMES, STOPS
from .overlaps import DATA_WAIT, SLOW_STEPS, Overlaps
from .phases import Account as Account
from .phases import Activities, Spent, add
from .phases import Phase as Phase

IN_ROUND: Final = frozenset(
    {
        *(Phase.SPAWNING, Phase.BUILDING, Phase.TRAINING, Phase.RUNNING),
        *(Phase.HANGING, Phase.DRAINING, Phase.STOPPING),
    }
)
_MAY_DRAIN: Final = IN_ROUND - {Phase.STOPPING}
_MAY_HANG: Final = frozenset({Phase.BUILDING, Phase.TRAINING, Phase.RUNNING})
_REPORTED: Final = frozenset({Phase.BUILDING, Phase.TRAINING})
"""Phases whose division among activities is known from workers' reports."""
_STRETCHES_MAX: Final = 1_000


class Accounting:
    """The fold; ``add`` records in order."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.node_rank = -1
        """Node rank in the last round; -1 if there was none."""
        self._uptime_s = 0.0
        self._wall_s: float | None = None
        """The wall-clock time of ``_uptime_s``; None before the first event."""
        self._is_started = False
        self._total, self._before = Account(), Account()
        """Time since the first start, and until the last one."""
        self._is_watched = False
        self._activities = Activities()
        self._undecided_s = 0.0
        """Time since the last report of the workers, in a phase of ``_REPORTED``."""
        self._doing: Spent | None = None
        """Activity of the first worker at the last report; None if unknown."""
        self._spent: dict[Spent, float] = {}
        """Time of each activity that it has reported in this round."""
        self._overlaps = Overlaps()
        self._since_stop: dict[Spent, float] | None = None
        """Time since training stopped, while it is unknown whether the workers restart."""
        self._is_restarting = False
        self.restart: dict[Spent, float] = {}
        """Seconds of the last restart or regroup so far, from the end of training. Another failure
        before the first step starts another restart."""
        self.is_restart_over = True
        """Whether the job has trained since, or unwatched workers have started."""
        self._before_hang = Phase.RUNNING
        self._idle_s = 0.0
        """In the current training: the time without a step at the last report."""
        self._are_steps_known = False
        self._cause = ""
        self._kept = _KeptSteps()
        self._step, self._training_s = -1, 0.0
        """Steps at the start of the current training, and its time."""

    def add(self, record: Record) -> None:
        """Process the next event of the node."""
        if record["name"] not in NAMES:
            return
        self._pass_time(record)
        if record["name"] == "round.progressed":
            self._progressed(record)
            return
        if record["name"] != "host.suspended":
            self._decide()
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
            case "hang.suspected" if self.phase in _MAY_HANG:
                if not self._spent:  # from an older ft-run
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
                self._cause = "regroup"
                self._begin_restart()
            case name if name in STOPS and self.phase in IN_ROUND:
                self._interrupt(Phase.STOPPING)

    def account(self, now_s: float = 0.0, *, of_all: bool = False) -> Account:
        """Return where the time went until ``now_s`` (see ``uptime_s``); values never decrease.

        A time before the last event has no effect. For exact phases of the workers, call it
        immediately after ``round.progressed``. With ``of_all`` it includes earlier runs, and
        ``goodput`` is the effective training time ratio (ETTR).
        """
        since_s = max(0.0, now_s - self._uptime_s)
        self._pass(since_s)
        self._decide()
        self._uptime_s = max(now_s, self._uptime_s)
        if self._wall_s is not None:
            self._wall_s += since_s
        account = self._total.since(Account() if of_all else self._before)
        add(account.overlapping, SLOW_STEPS, self._overlaps.slow_s)
        return account

    @property
    def lost_s(self) -> float:
        """Training lost since the first start; unlike ``account``, this changes nothing."""
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
        self._pass(passed_s)
        self._uptime_s, self._wall_s = uptime_s, wall_s

    def _pass(self, seconds: float) -> None:
        if self.phase in _REPORTED:
            self._undecided_s += seconds
        else:
            self._spend(self.phase, seconds)

    def _decide(self) -> None:
        """Assign the time since the last report to the activity at that report."""
        undecided_s, self._undecided_s = self._undecided_s, 0.0
        does = self._doing if self.phase in _REPORTED else None
        self._spend(self.phase if does is None else does, undecided_s)

    def _spend(self, phase: Spent, seconds: float) -> None:
        add(self._total.phases, phase, seconds)
        if phase is Phase.STOPPING and self._since_stop is None:
            self._since_stop = {}  # a worker exits
        if phase is Phase.TRAINING:
            self._training_s += seconds
            return
        if self._is_restarting:
            add(self._total.restart_phases, phase, seconds)
        if self._since_stop is not None:
            add(self._since_stop, phase, seconds)
        elif not self.is_restart_over:
            add(self.restart, phase, seconds)

    def _start_again(self, wall_s: float) -> None:
        """Handle the start of another ft-run at ``wall_s``; the previous one has ended."""
        self._decide()
        self._end_training(-1)
        self._trains()  # its handling of a failure has ended
        if self._wall_s is not None:
            self._spend(Phase.ENDED, max(0.0, wall_s - self._wall_s))
        self._before = self._total.copy()
        self._uptime_s, self._is_started = 0.0, False
        self._forget_reports()
        self.phase, self._cause = Phase.STARTING, "requeue"

    # --- events ------------------------------------------------------------------------------

    def _wait(self, phase: Phase) -> None:
        if self.phase not in IN_ROUND:
            self.phase = phase

    def _round_started(self, record: Record) -> None:
        self.node_rank, self._is_watched = record["node_rank"], record["is_watched"]
        self.phase, self._training_s = Phase.SPAWNING, 0.0
        self._forget_reports()
        if record["resumes_from"] >= 0:
            self._go_back(record["resumes_from"])

    def _workers_started(self) -> None:
        self.phase = Phase.BUILDING if self._is_watched else Phase.RUNNING
        if not self._is_watched:
            self._trains()

    def _training_started(self, step: int) -> None:
        self.phase = Phase.TRAINING
        self._trains()
        self._step = step
        if step >= 0:
            self._go_back(step - 1)

    def _forget_reports(self) -> None:
        self._doing, self._spent, self._idle_s = None, {}, 0.0
        self._overlaps.begin()

    def _progressed(self, record: Record) -> None:
        spent = {self._activities.find(name): s for name, s in record.get("phases", {}).items()}
        if self.phase in _REPORTED:
            left_s, self._undecided_s = self._undecided_s, 0.0
            parts = []
            for phase, seconds in spent.items():
                if phase is not self.phase:
                    part_s = min(left_s, max(0.0, seconds - self._spent.get(phase, 0.0)))
                    parts.append((phase, part_s))
                    left_s -= part_s
            parts.append((self.phase, left_s))
            # Time before the exit of a worker does not belong to a restart.
            for phase, part_s in sorted(parts, key=lambda part: part[0] is Phase.STOPPING):
                self._spend(phase, part_s)
        self._spent = spent
        add(self._total.overlapping, DATA_WAIT, self._overlaps.add(record))
        name = record.get("doing", "")
        self._doing = self._activities.find(name) if name else None
        if self.phase is Phase.TRAINING:
            idle_s = record.get("idle_training_s", record["idle_s"])  # missing in older files
            self._idle_s = min(idle_s, self._training_s)
            self._are_steps_known = record["steps"] >= 0
            self._has_done(record["steps"], self._idle_s)

    def _trains(self) -> None:
        self._since_stop, self._is_restarting, self.is_restart_over = None, False, True

    def _dismissed(self) -> None:
        self.phase = self._before_hang
        if self.phase is not Phase.BUILDING:
            self._trains()
        elif not self.is_restart_over:
            for phase, seconds in (self._since_stop or {}).items():
                add(self.restart, phase, seconds)
            self._since_stop = None

    def _interrupt(self, phase: Phase) -> None:
        self.phase = phase
        if self._since_stop is None:
            self._since_stop = {}

    def _round_ended(self, record: Record) -> None:
        self._end_training(record["steps"])
        if self.phase in IN_ROUND:
            self.phase = Phase.STOPPING if record["is_last"] else Phase.WAITING

    def _restart(self, cause: str) -> None:
        self._cause = cause
        add(self._total.restarts, cause, 1)
        if not self._is_restarting:
            for phase, seconds in (self._since_stop or {}).items():
                add(self._total.restart_phases, phase, seconds)
        self._is_restarting = True
        self._begin_restart()
        if cause == "hang" or self._are_steps_known:
            add(self._total.lost, cause, self._idle_s)
            self._training_s = max(0.0, self._training_s - self._idle_s)
        self._idle_s = 0.0

    def _begin_restart(self) -> None:
        self.restart, self._since_stop = self._since_stop or {}, None
        self.is_restart_over = False

    def _has_done(self, step: int, idle_s: float) -> None:
        """Record that ``step`` steps are complete, the last one ``idle_s`` ago; -1 if unknown."""
        if 0 <= self._step < step:
            self._kept.trained(self._step, step, self._training_s - idle_s)
            self._step, self._training_s = step, idle_s

    def _end_training(self, step: int) -> None:
        self._has_done(step, self._idle_s)
        self._step, self._training_s = -1, 0.0

    def _go_back(self, step: int) -> None:
        add(self._total.lost, self._cause, self._kept.back_to(step))


class _Stretch(Struct):
    """Training from one step count to another."""

    first: int
    last: int
    seconds: float


class _KeptSteps:
    """Stretches of training in the order of their steps.

    If there are too many, the oldest are joined: a job rarely goes back to them.
    """

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []

    def trained(self, first: int, last: int, seconds: float) -> None:
        if last <= first:
            return
        self._stretches.append(_Stretch(first, last, seconds))
        if len(self._stretches) > _STRETCHES_MAX:
            half = _STRETCHES_MAX // 2
            old = self._stretches[:half]
            joined = _Stretch(old[0].first, old[-1].last, sum(one.seconds for one in old))
            self._stretches[:half] = [joined]

    def back_to(self, step: int) -> float:
        """Remove the steps after ``step``; return the seconds that they took."""
        lost_s = 0.0
        while self._stretches and self._stretches[-1].last > step:
            stretch = self._stretches.pop()
            steps = stretch.last - stretch.first
            part_s = stretch.seconds * min(1.0, (stretch.last - step) / steps)
            lost_s += part_s
            self.trained(stretch.first, step, stretch.seconds - part_s)
        return lost_s


def seconds_of(time: str) -> float:
    """Return the Unix time of a record's ``time``: ``2026-11-25T06:38:28.123456Z``."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
