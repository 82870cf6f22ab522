"""The lifecycle of this node: its states and the transitions between them.

    RUNNING → PREEMPTED → LEAVING → AWAITING_MASTER → LEFT
       └──────────┴──→ JOB_OVER, or FAILED

No I/O, no clock: takes an event and the agent's ``Situation``, and returns orders for the agent.
"""

import enum
import math
import signal
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from ... import exit_codes
from ...errors import FtRunError
from ...events.event import Event
from ...events.node import (
    KilledOnRequest,
    MasterAwaitedToLeave,
    NodePreempted,
    NodeSignalled,
    ThisNodeLeaves,
)
from ...rendezvous.master.link import LinkDown, LinkUp
from ...rendezvous.policy.matches import exit_status
from ...rendezvous.protocol.drain_messages import MayLeave, Notice
from ...rendezvous.protocol.failure import signal_name
from ...rendezvous.protocol.messages import Assignment, Heard, Leave, Outcome, Start, Stop, Verdict
from ..options import LaunchOptions
from ..preemption.notice import PreemptionNotice

MASTER_WAIT_S: Final = 5.0
"""Maximum time that a leaving node waits for a disconnected master, to report the reason."""
PATIENCE_MIN_S: Final = 1.0
"""Minimum time for workers to exit after SIGTERM, even if the deadline has passed."""


class Stage(enum.Enum):
    """The stage of a node's lifecycle."""

    RUNNING = "running"
    PREEMPTED = "preempted"
    """The node is being preempted: all ranks save a consistent snapshot first."""
    FAILED = "failed"
    """The node ends because of a local error; its workers are being stopped."""
    LEAVING = "leaving"
    """A signal or preemption notice ended this node's part; its workers have limited time to stop.
    """
    AWAITING_MASTER = "awaiting master"
    """No worker is running. The master is disconnected and would count this node as lost."""
    LEFT = "left"
    JOB_OVER = "job over"


NEXT: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.RUNNING: frozenset({Stage.PREEMPTED, Stage.LEAVING, Stage.FAILED, Stage.JOB_OVER}),
    Stage.PREEMPTED: frozenset({Stage.LEAVING, Stage.FAILED, Stage.JOB_OVER}),
    Stage.FAILED: frozenset({Stage.LEAVING, Stage.JOB_OVER}),
    Stage.LEAVING: frozenset({Stage.AWAITING_MASTER, Stage.LEFT}),
    Stage.AWAITING_MASTER: frozenset({Stage.LEFT}),
    Stage.LEFT: frozenset(),
    Stage.JOB_OVER: frozenset(),
}

_MAY_LEAVE: Final = frozenset(stage for stage, after in NEXT.items() if Stage.LEAVING in after)


# --- events; some messages of the master are events as well --------------------------------------


class Signalled(Struct, frozen=True):
    """This process received a signal."""

    number: int


class TimeIsUp:
    """The timer of the last ``Wake`` has expired."""


class WorkersGone:
    """All processes of the workers have exited."""


class Judged(Struct, frozen=True):
    """The job is over; ``override`` is the error with which this node ends instead."""

    verdict: Verdict
    override: FtRunError | None = None


class JobOver(Struct, frozen=True):
    """The job is over according to the master on this host; the agent may be disconnected."""

    verdict: Verdict


_OfMaster = Stop | MayLeave | LinkUp
LifeEvent = Signalled | PreemptionNotice | TimeIsUp | WorkersGone | FtRunError | Judged | _OfMaster
"""An ``FtRunError`` is a local error that ends this node."""


class Situation(Struct, frozen=True):
    """The state of the agent at the time of an event."""

    now: float
    """Seconds of a monotonic clock."""
    workers: int | None = None
    """Number of workers that have not exited; None if no process is left."""
    may_save: bool = False
    """Whether workers are running that are not being stopped and have not all succeeded."""
    asks_for_notices: bool = False
    """Whether a worker of the round has requested preemption notices."""
    is_master_missed: bool = False
    """Whether the master would count this node as lost if it exited now."""


# --- orders; events for the user and messages to the master are orders as well --------------------


class StopWorkers(Struct, frozen=True):
    """Send a signal to the workers, and kill the remaining ones after the timeout."""

    number: int = signal.SIGTERM
    lets_settle: bool = False
    """First wait briefly for workers that are already exiting."""
    is_hung: bool = False
    """The workers hang, and get no time to save anything."""
    patience_s: float | None = None
    """Maximum time to exit; None for the usual time."""


class EndWorkers(Struct, frozen=True):
    """Stop the workers, which are no longer needed; ``gently`` if they have succeeded."""

    gently: bool


class KillWorkers(Struct, frozen=True):
    """Kill the workers immediately."""


class Wake(Struct, frozen=True):
    """Post ``TimeIsUp`` after some seconds; this replaces an earlier timer."""

    seconds: float


LifeOrder = Event | Notice | Leave | Heard | StopWorkers | EndWorkers | KillWorkers | Wake


class Lifecycle:
    """The stage of this node, and the reason for its end."""

    def __init__(self, options: LaunchOptions) -> None:
        self._limit_s = options.shutdown_timeout_s
        self._propagates = options.propagate_exit_code
        self.stage = Stage.RUNNING
        self.signal: int | None = None
        """The signal that made this node leave; SIGTERM for a preemption notice."""
        self.verdict: Verdict | None = None
        """The result of the job; None while it runs, or if this node left before the end."""
        self._error: FtRunError | None = None
        self._asked_at = 0.0
        self._heard: set[str] = set()
        """Reasons of all preemption notices."""
        self._notice = ""
        """Reason of the preemption; empty if this node is not being preempted."""
        self._gone_at = self._save_until = math.inf

    # --- state -----------------------------------------------------------------------------------

    @property
    def goes_on(self) -> bool:
        """Whether this node neither leaves nor has ended: workers may be started."""
        return self.stage in (Stage.RUNNING, Stage.PREEMPTED)

    @property
    def is_decided(self) -> bool:
        """Whether the exit code is known."""
        return self._error is not None or self.stage in (Stage.LEFT, Stage.JOB_OVER)

    @property
    def is_preempted(self) -> bool:
        """Whether a preemption notice was received while workers were training."""
        return bool(self._notice)

    def time_left_s(self, now: float) -> float:
        """Return how many seconds this node has until it must exit, once all workers are gone."""
        left_s = self._shutdown_left_s(now)
        return min(left_s, self._patience_s(now)) if self._notice else left_s

    def status(self) -> int:
        """Return the exit code, or raise the error that ended this node."""
        if self._error is not None:
            raise self._error
        if self.signal is not None:
            return exit_codes.SIGNAL_BASE + self.signal
        verdict = self.verdict
        assert verdict is not None
        if not self._propagates or verdict.outcome is not Outcome.WORKERS_FAILED:
            return verdict.exit_code
        return (exit_status(verdict.cause) if verdict.cause else None) or verdict.exit_code

    # --- events ----------------------------------------------------------------------------------

    def handle(self, event: LifeEvent, at: Situation) -> list[LifeOrder]:
        """Handle an event; return the orders to execute, in this order."""
        match event:
            case Signalled(number):
                return self._signalled(number, at)
            case PreemptionNotice():
                return self._noticed(event, at)
            case MayLeave(_, step):
                return self._leave_preempted(at, step)
            case Stop():  # the next round does not include a node that is being preempted
                return self._leave_preempted(at)
            case TimeIsUp():
                return self._leave_preempted(at) or self._end_wait()
            case WorkersGone():
                return self._workers_gone(at)
            case LinkUp():  # the first message on a stream reports that this node leaves
                self._end_wait()
                return self._notify(at.now)
            case FtRunError():
                self._fail(event)
                return [EndWorkers(gently=False)]
            case Judged(verdict, override):
                return self._judged(verdict, override)

    def _signalled(self, number: int, at: Situation) -> list[LifeOrder]:
        name = signal_name(number)
        if self.stage not in _MAY_LEAVE:
            if number == signal.SIGINT and at.workers is not None:
                return [KilledOnRequest(), KillWorkers()]
            return self._end_wait()
        if number == signal.SIGTERM and at.asks_for_notices and name not in self._heard:
            return self._noticed(PreemptionNotice(name, self._limit_s), at)
        return self._leave(number, name, NodeSignalled(name, at.workers or 0), None, at)

    def _noticed(self, notice: PreemptionNotice, at: Situation) -> list[LifeOrder]:
        """Let all ranks save a consistent snapshot first, if they are training.

        The earliest notice applies. The ranks get the notice period minus ``--shutdown-timeout``,
        but at least half of the period.
        """
        if self.stage not in _MAY_LEAVE:
            return []
        if not at.may_save:
            return self._leave_for(notice.reason, at)
        self._heard.add(notice.reason)
        gone_at = at.now + notice.seconds
        if gone_at >= self._gone_at:
            return []
        limit_s = notice.seconds - min(self._limit_s, notice.seconds / 2)
        self._gone_at, self._save_until = gone_at, at.now + limit_s
        orders: list[LifeOrder] = []
        if not self._notice:
            self._notice = notice.reason
            self._go(Stage.PREEMPTED)
            orders.append(NodePreempted(notice.reason, notice.seconds, limit_s))
        return [*orders, Wake(limit_s), *self._notify(at.now)]

    def _notify(self, now: float) -> list[LifeOrder]:
        if self.stage is not Stage.PREEMPTED:
            return []
        return [Notice(self._notice, max(0.0, self._save_until - now))]

    def _leave_preempted(self, at: Situation, step: int = -1) -> list[LifeOrder]:
        """Leave if there was a notice: the ranks have saved ``step``, or their time has expired."""
        if not self._notice or self.stage not in _MAY_LEAVE:
            return []
        return self._leave_for(self._notice, at, step)

    def _leave_for(self, reason: str, at: Situation, step: int = -1) -> list[LifeOrder]:
        said = ThisNodeLeaves(reason, at.workers or 0, step)
        return self._leave(signal.SIGTERM, reason, said, self._patience_s(at.now), at)

    def _leave(
        self, number: int, reason: str, said: Event, patience_s: float | None, at: Situation
    ) -> list[LifeOrder]:
        self._go(Stage.LEAVING)
        self.signal, self._asked_at = number, at.now
        orders: list[LifeOrder] = [said, Leave(reason)]
        if at.workers is None:
            return orders + self._workers_gone(at)
        return [*orders, StopWorkers(number, patience_s=patience_s)]

    def _workers_gone(self, at: Situation) -> list[LifeOrder]:
        """Leave after waiting for a disconnected master: otherwise the other nodes must restart.

        There is no wait after Ctrl-C. ``--shutdown-timeout`` limits the wait: SIGKILL may follow.
        """
        if self.stage is not Stage.LEAVING:
            return []
        wait_s = min(MASTER_WAIT_S, self._shutdown_left_s(at.now))
        is_awaited = at.is_master_missed and self.signal != signal.SIGINT and self._error is None
        if not is_awaited or wait_s <= 0:
            self._go(Stage.LEFT)
            return []
        self._go(Stage.AWAITING_MASTER)
        return [MasterAwaitedToLeave(wait_s), Wake(wait_s)]

    def _end_wait(self) -> list[LifeOrder]:
        if self.stage is Stage.AWAITING_MASTER:
            self._go(Stage.LEFT)
        return []

    def _fail(self, error: FtRunError) -> None:
        """End because of a local error; the first of several errors sets the exit code."""
        if self.goes_on:
            self._go(Stage.FAILED)
            self._error = error
        elif self.stage in (Stage.LEAVING, Stage.AWAITING_MASTER):
            self._go(Stage.LEFT)

    def _judged(self, verdict: Verdict, override: FtRunError | None) -> list[LifeOrder]:
        if self.verdict is not None:
            return [Heard()]  # the first one counts
        self.verdict = verdict
        if override is not None:
            self._fail(override)
        elif self.stage in _MAY_LEAVE:
            self._go(Stage.JOB_OVER)
        return [Heard(), EndWorkers(gently=verdict.outcome is Outcome.SUCCEEDED)]

    # --- times -----------------------------------------------------------------------------------

    def _patience_s(self, now: float) -> float:
        return max(PATIENCE_MIN_S, self._gone_at - now) if self._notice else PATIENCE_MIN_S

    def _shutdown_left_s(self, now: float) -> float:
        """Return the remaining part of ``--shutdown-timeout``, which starts with the signal."""
        if self.signal is None:
            return self._limit_s
        return max(0.0, self._limit_s - (now - self._asked_at))

    def _go(self, stage: Stage) -> None:
        assert stage in NEXT[self.stage], f"{self.stage.value} → {stage.value}"
        self.stage = stage


class Starts:
    """The master's start orders: each is executed once, and not while this node is fenced."""

    def __init__(self) -> None:
        self._ordered: Assignment | None = None
        self._newest = -1
        """The last round started here."""

    def due(self, event: object, *, is_fenced: bool) -> Assignment | None:
        """Return the assignment to start now: just ordered, or delayed while this node was fenced.

        A delayed start is discarded when its round or its stream ends.
        """
        if isinstance(event, Stop | LinkUp | LinkDown):
            self._ordered = None
        if isinstance(event, Start) and event.assignment.round > self._newest:
            self._ordered = event.assignment
        if is_fenced or self._ordered is None:
            return None
        due, self._ordered = self._ordered, None
        self._newest = due.round
        return due
