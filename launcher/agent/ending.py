"""How a node's part in its job ends: by the verdict, by a signal, or for a local reason."""

import asyncio
import math
import signal
import time
from collections.abc import Callable

from ... import exit_codes
from ...events.node import (
    JobEnded,
    KilledOnRequest,
    LogsKept,
    MasterAwaitedToLeave,
    NodeSignalled,
    ThisNodeLeaves,
)
from ...rendezvous.policy.matches import exit_status
from ...rendezvous.protocol.failure import signal_name
from ...rendezvous.protocol.messages import Leave, Outcome, Verdict
from ...values import dataclass
from ..options import LaunchOptions
from ..preemption.departure import Departure
from ..preemption.gone_soon import GoneSoon
from ..reporting.failure_report import final_report
from .parts import NodeParts
from .signals import heard
from .supervisor import Supervisor
from .worker_group import WorkerGroupState

SAME_S = 0.2
"""A signal that comes again so soon is the same one: ``timeout`` sends it to its child and to its
process group, and wrappers pass on a Ctrl-C that the terminal has sent to all."""
_FAREWELL_S = 5.0
"""The longest time that a leaving node waits for an absent master, to tell it why."""


class NodeEnd:
    """What is known of the end so far. The first of several reasons gives the exit status."""

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._exit_code: int | None = None
        self._error: Exception | None = None
        self.signal: int | None = None
        """The signal that asked this node to leave."""
        self._signalled_at = 0.0
        self.verdict: Verdict | None = None
        """How the job ended; None while it runs, or if this node left before the end."""

    @property
    def is_pending(self) -> bool:
        """Whether neither the job has ended nor this node has begun to leave."""
        return self.signal is None and self._exit_code is None

    @property
    def is_known(self) -> bool:
        """Whether the outcome for this node is known."""
        return self._exit_code is not None or self._error is not None

    def asked_by(self, number: int) -> None:
        """Note a signal that asks this node to leave."""
        self.signal, self._signalled_at = number, time.monotonic()

    def patience_s(self) -> float:
        """Return how many seconds this node may wait for an absent master, to say that it leaves.

        None after Ctrl-C, and never more than is left of ``--shutdown-timeout``: SIGKILL may
        follow the signal after that.
        """
        if self.signal in (None, signal.SIGINT):
            return 0.0
        return min(_FAREWELL_S, self.time_left_s())

    def time_left_s(self) -> float:
        """Return how many seconds are left of ``--shutdown-timeout``, once the workers are gone."""
        limit_s = self._options.shutdown_timeout_s
        if self.signal is None:
            return limit_s
        return max(0.0, limit_s - (time.monotonic() - self._signalled_at))

    def set_verdict(self, verdict: Verdict, override: Exception | None = None) -> None:
        """Note the verdict; ``override`` is why this node ends differently from the job."""
        self.verdict = verdict
        if override is not None:
            self.failed(override)
        elif self.signal is None:
            self._exit_code = self._exit_code_of(verdict)

    def failed(self, error: Exception) -> None:
        """Note a local reason for which this node ends."""
        if not self.is_pending:
            self.left()
        elif self._error is None:
            self._error = error

    def left(self) -> None:
        """Note that no worker is left: a node that a signal asked to leave has now left."""
        if self.signal is not None and self._exit_code is None:
            self._exit_code = exit_codes.SIGNAL_BASE + self.signal

    def status(self) -> int:
        """Return the exit status, or raise the error that ended this node."""
        if self._error is not None:
            raise self._error
        assert self._exit_code is not None
        return self._exit_code

    def _exit_code_of(self, verdict: Verdict) -> int:
        """Return the verdict's exit status, or with --propagate-exit-code the root cause's."""
        if not self._options.propagate_exit_code or verdict.outcome is not Outcome.WORKERS_FAILED:
            return verdict.exit_code
        status = exit_status(verdict.cause) if verdict.cause is not None else None
        return status or verdict.exit_code


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process got a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class JobOver:
    """The job is over, says this host, which may lead it: its agent may not have been connected."""

    verdict: Verdict


def unheard(exit_code: int) -> Verdict:
    """Return the verdict for a node of which only the exit status has been told."""
    has_succeeded = exit_code == exit_codes.SUCCESS
    return Verdict(
        outcome=Outcome.SUCCEEDED if has_succeeded else Outcome.RENDEZVOUS_FAILED,
        exit_code=exit_code,
        sentence="it ended while this node was not connected; the other nodes say how",
        restarts=0,
        rounds=0,
        cause=None,
        failures=(),
        failure_count=0,
    )


class FarewellOver:
    """The time in which a leaving node waits for an absent master is over."""


class Farewell:
    """Leaving because a signal asks for it. The master is told first, if it is there in time."""

    def __init__(
        self,
        end: NodeEnd,
        parts: NodeParts,
        departure: Departure,
        is_missed: Callable[[], bool],
        send: Callable[[Leave], None],
        post: Callable[[Signalled | FarewellOver], None],
    ) -> None:
        """Begin without a signal.

        Args:
            end: is told of the signal, and when nothing is left to be waited for.
            parts: which signals are handled; those for the workers are passed on.
            departure: what the workers do before a node is gone, and until when.
            is_missed: returns whether the master would take this node for lost, if it left now.
            send: sends a message to the master.
            post: queues an event; it comes back through ``signalled``, or ends the node.
        """
        self._end, self._parts, self._departure = end, parts, departure
        self._is_missed, self._send, self._post = is_missed, send, post
        self._heard_at: dict[int, float] = {}

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle signals from now on."""
        signals = self._parts.options.signals
        for number in heard(signals):
            loop.add_signal_handler(number, self._hear, number)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if number not in signals:
                loop.add_signal_handler(number, self._parts.spawner.signal, number)

    def _hear(self, number: int) -> None:
        now = time.monotonic()
        if now - self._heard_at.get(number, -math.inf) >= SAME_S:
            self._heard_at[number] = now
            self._post(Signalled(number))

    def signalled(self, event: Signalled, workers: Supervisor) -> None:
        """Stop the workers and leave; a second Ctrl-C kills them."""
        name, group = signal_name(event.number), workers.group
        if not self._end.is_pending:
            if event.number == signal.SIGINT and group is not None:
                self._parts.display.event(KilledOnRequest())
                workers.kill()
            elif group is None:
                self._end.left()  # it only waits for the master
            return
        is_first = name not in self._departure.sources
        if event.number == signal.SIGTERM and is_first and self._departure.waits_for_workers:
            seconds = self._parts.options.shutdown_timeout_s
            self.gone_soon(GoneSoon(name, seconds), workers)
            return
        self._end.asked_by(event.number)
        self._parts.display.event(NodeSignalled(name, group.alive if group is not None else 0))
        self._send(Leave(name))
        if group is None:
            self.left()
        else:
            workers.stop(event.number)

    def gone_soon(self, gone: GoneSoon, workers: Supervisor) -> None:
        """This node will be gone: have all ranks leave one state first, if they do anything."""
        group = workers.group
        if not self._end.is_pending:
            return
        if group is None or group.state.is_ending or group.state is WorkerGroupState.DONE:
            self.leave(gone.reason, workers)
        else:
            self._departure.notice(gone)

    def leave(self, reason: str, workers: Supervisor, step: int = -1) -> None:
        """Leave as on SIGTERM: this node will be gone, and the ranks have had their time.

        Args:
            reason: why it will be gone; empty: it will not, and stays.
            workers: are stopped.
            step: whose state they have left; -1: none.
        """
        group = workers.group
        if not reason or not self._end.is_pending:
            return
        self._end.asked_by(signal.SIGTERM)
        self._parts.display.event(
            ThisNodeLeaves(reason, group.alive if group is not None else 0, step)
        )
        self._send(Leave(reason))
        if group is None:
            self.left()
        else:
            workers.stop(patience_s=self._departure.patience_s())

    def left(self) -> None:
        """Leave, now that no worker is left, if a signal asked for it; tell the master first.

        An absent master is waited for, briefly and never beyond ``--shutdown-timeout``: it would
        take this node for lost, which costs the others a restart.
        """
        patience_s = self._end.patience_s() if self._is_missed() else 0.0
        if patience_s > 0:
            self._parts.display.event(MasterAwaitedToLeave(patience_s))
            asyncio.get_running_loop().call_later(patience_s, self._post, FarewellOver())
        else:
            self._end.left()


def show_verdict(verdict: Verdict, parts: NodeParts) -> None:
    """Print how the job ended, after everything else."""
    options, display, log_dir = parts.options, parts.display, parts.log_dir
    if verdict.outcome in (Outcome.WORKERS_FAILED, Outcome.POLICY_ENDED):
        display.report(final_report(verdict, options.name or options.script))
        if log_dir.keeps_files:
            display.event(LogsKept(str(log_dir.path)))
    display.event(JobEnded(verdict))
