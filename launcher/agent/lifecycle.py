"""What may still happen to this node: every state of its life, and every way to the next one.

    RUNNING → PREEMPTED → LEAVING → AWAITING_MASTER → LEFT
       └──────────┴──→ JOB_OVER, or FAILED

Nothing here waits, sends or reads a clock. An event and what the agent knows at that moment go in,
orders come out; the agent carries them out one after the other.
"""

import enum
import math
import signal
from collections.abc import Mapping
from typing import Final

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
from ...values import dataclass
from ..options import LaunchOptions
from ..preemption.notice import PreemptionNotice

MASTER_WAIT_S: Final = 5.0
"""The longest time that a leaving node waits for an absent master, to tell it why."""
PATIENCE_MIN_S: Final = 1.0
"""What workers have to end after SIGTERM at least, however late it is."""


class Stage(enum.Enum):
    """How far the life of a node is."""

    RUNNING = "running"
    PREEMPTED = "preempted"
    """The machine will be gone: all ranks save one state first."""
    FAILED = "failed"
    """It ends for a reason of its own; its workers are being stopped."""
    LEAVING = "leaving"
    """A signal or a notice has asked it to leave; its workers are being stopped, and time runs."""
    AWAITING_MASTER = "awaiting master"
    """No worker is left. A master that is absent would take this node for lost."""
    LEFT = "left"
    JOB_OVER = "job over"
    """The verdict has come."""


NEXT: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.RUNNING: frozenset({Stage.PREEMPTED, Stage.LEAVING, Stage.FAILED, Stage.JOB_OVER}),
    Stage.PREEMPTED: frozenset({Stage.LEAVING, Stage.FAILED, Stage.JOB_OVER}),
    Stage.FAILED: frozenset({Stage.LEAVING, Stage.JOB_OVER}),
    Stage.LEAVING: frozenset({Stage.AWAITING_MASTER, Stage.LEFT}),
    Stage.AWAITING_MASTER: frozenset({Stage.LEFT}),
    Stage.LEFT: frozenset(),
    Stage.JOB_OVER: frozenset(),
}
"""The legal transitions."""

_MAY_LEAVE: Final = frozenset(stage for stage, after in NEXT.items() if Stage.LEAVING in after)


# --- events: what happens to a node; besides these, some messages of the master ------------------


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process got a signal."""

    number: int


class TimeIsUp:
    """The time of the last ``Wake`` is over."""


class WorkersGone:
    """Nothing is left of the workers."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The job is over; ``override`` is why this node ends differently from it."""

    verdict: Verdict
    override: FtRunError | None = None


@dataclass(frozen=True, slots=True)
class JobOver:
    """The job is over, says this host, which may lead it: its agent may not have been connected."""

    verdict: Verdict


_OfMaster = Stop | MayLeave | LinkUp
LifeEvent = Signalled | PreemptionNotice | TimeIsUp | WorkersGone | FtRunError | Judged | _OfMaster
"""An error is a reason of this node's own to end."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the agent knows when something happens."""

    now: float
    """Seconds of a clock that no one sets."""
    workers: int | None = None
    """How many have not exited; None: nothing is left of them."""
    may_save: bool = False
    """Workers run, and have neither been told to end nor all succeeded."""
    asks_for_notices: bool = False
    """A worker of the round has asked whether nodes are being preempted."""
    is_master_missed: bool = False
    """The master would take this node for lost, if it left now."""


# --- orders: what follows, besides what the user and the master are told --------------------------


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Signal the workers to end, and kill those that are left when their time is over."""

    number: int = signal.SIGTERM
    """The signal."""
    lets_settle: bool = False
    """First give workers that are ending by themselves a moment."""
    is_hung: bool = False
    """They hang, and are not given the time to save anything; what NCCL's flight recorder has of
    them is written first."""
    patience_s: float | None = None
    """How long they have at most; None: as long as workers have."""


@dataclass(frozen=True, slots=True)
class EndWorkers:
    """This node needs its workers no longer; ``gently``: they have succeeded."""

    gently: bool


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Kill the workers at once."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Bring ``TimeIsUp`` after some seconds, in place of the one that was asked for before."""

    seconds: float


LifeOrder = Event | Notice | Leave | Heard | StopWorkers | EndWorkers | KillWorkers | Wake


class Lifecycle:
    """The stage of this node, and what is known of its end."""

    def __init__(self, options: LaunchOptions) -> None:
        """Begin to run.

        Args:
            options: ``--shutdown-timeout``, and whether the exit status is the root cause's.
        """
        self._limit_s = options.shutdown_timeout_s
        self._propagates = options.propagate_exit_code
        self.stage = Stage.RUNNING
        self.signal: int | None = None
        """The signal that asked this node to leave; SIGTERM for a notice."""
        self.verdict: Verdict | None = None
        """How the job ended; None while it runs, or if this node left before the end."""
        self._error: FtRunError | None = None
        self._asked_at = 0.0
        self._heard: set[str] = set()
        """The reasons of all notices."""
        self._notice = ""
        """Why this machine will be gone; empty: it will not."""
        self._gone_at = self._save_until = math.inf

    # --- what others ask -------------------------------------------------------------------------

    @property
    def goes_on(self) -> bool:
        """Whether this node neither leaves nor has come to its end: workers may be started."""
        return self.stage in (Stage.RUNNING, Stage.PREEMPTED)

    @property
    def is_decided(self) -> bool:
        """Whether the exit status is known."""
        return self._error is not None or self.stage in (Stage.LEFT, Stage.JOB_OVER)

    @property
    def is_preempted(self) -> bool:
        """Whether a notice has come that the ranks had time for."""
        return bool(self._notice)

    def time_left_s(self, now: float) -> float:
        """Return how many seconds this node has for what remains, now that no worker is left."""
        left_s = self._shutdown_left_s(now)
        return min(left_s, self._patience_s(now)) if self._notice else left_s

    def status(self) -> int:
        """Return the exit status, or raise the error that ended this node."""
        if self._error is not None:
            raise self._error
        if self.signal is not None:
            return exit_codes.SIGNAL_BASE + self.signal
        verdict = self.verdict
        assert verdict is not None
        if not self._propagates or verdict.outcome is not Outcome.WORKERS_FAILED:
            return verdict.exit_code
        return (exit_status(verdict.cause) if verdict.cause else None) or verdict.exit_code

    # --- what happens ----------------------------------------------------------------------------

    def handle(self, event: LifeEvent, at: Situation) -> list[LifeOrder]:
        """Take an event; return what to do, in this order."""
        match event:
            case Signalled(number):
                return self._signalled(number, at)
            case PreemptionNotice():
                return self._noticed(event, at)
            case MayLeave(_, step):
                return self._leave_preempted(at, step)
            case Stop():  # the next round does without a machine that will be gone
                return self._leave_preempted(at)
            case TimeIsUp():
                return self._leave_preempted(at) or self._end_wait()
            case WorkersGone():
                return self._workers_gone(at)
            case LinkUp():  # the first words on a stream say that this node leaves
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
        """Have all ranks save one state first, if they train; the earliest of the notices holds.

        They have all of the time but what the workers need to end, and half of it at least.
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
        """Leave, if there was a notice: the ranks have saved ``step``, or have had their time."""
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
        """Leave, but wait for an absent master: else a restart is the price for the others.

        There is no wait after Ctrl-C, and none beyond ``--shutdown-timeout``: SIGKILL may follow
        the signal after that.
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
        """End for a reason of its own; the first of several reasons gives the exit status."""
        if self.goes_on:
            self._go(Stage.FAILED)
            self._error = error
        elif self.stage in (Stage.LEAVING, Stage.AWAITING_MASTER):
            self._go(Stage.LEFT)

    def _judged(self, verdict: Verdict, override: FtRunError | None) -> list[LifeOrder]:
        self.verdict = verdict
        if override is not None:
            self._fail(override)
        elif self.stage in _MAY_LEAVE:
            self._go(Stage.JOB_OVER)
        return [Heard(), EndWorkers(gently=verdict.outcome is Outcome.SUCCEEDED)]

    # --- times -----------------------------------------------------------------------------------

    def _patience_s(self, now: float) -> float:
        """Return how long workers have to end, now that they get SIGTERM."""
        return max(PATIENCE_MIN_S, self._gone_at - now) if self._notice else PATIENCE_MIN_S

    def _shutdown_left_s(self, now: float) -> float:
        """Return what is left of ``--shutdown-timeout``, which counts from the signal."""
        if self.signal is None:
            return self._limit_s
        return max(0.0, self._limit_s - (now - self._asked_at))

    def _go(self, stage: Stage) -> None:
        assert stage in NEXT[self.stage], f"{self.stage.value} → {stage.value}"
        self.stage = stage


class Starts:
    """The master's orders to start: each once, and none while this node may have no leader."""

    def __init__(self) -> None:
        """Begin before the first round."""
        self._ordered: Assignment | None = None
        self._newest = -1
        """The last round that was started here."""

    def due(self, event: object, *, is_fenced: bool) -> Assignment | None:
        """Return what is to be started now: it is ordered, or the stream has outlived the doubt.

        Args:
            event: whichever; a start that is held back is forgotten with its round or its stream.
            is_fenced: no worker may live here now.
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
