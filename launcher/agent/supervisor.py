"""Watches over this node's workers: what each exit means, and how long a stop may take.

It starts the workers of a round, finds out what failed and why, and drives a stop until nothing is
left. It tells its listener, which decides what follows for the job.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from ... import defaults
from ...events.event import Remark, Severity
from ...events.workers import (
    CollectivesRecorded,
    KillOutlived,
    LeftoversEnded,
    PreloadAwaited,
    TimerExpired,
    WorkerFailed,
    WorkersKilled,
    WorkersStarted,
    WorkersSucceeded,
)
from ...rendezvous.protocol.failure import Evidence, Failure, evidence
from ...rendezvous.protocol.messages import Assignment, NodeSpec, Progress
from ...values import dataclass
from ..machine import shortage
from ..machine.gpu_memory import GpuMemory
from ..machine.nvml import has_driver
from ..processes.dying import DEVICES_SURVIVE_KILL_S, SURVIVES_KILL_S, Dying
from ..processes.tree import descendants
from ..processes.worker_exec import NOT_EXECUTED
from ..reporting.event_log import EventLog
from ..spawner.client import Exited, Spawned
from ..stacks.collect import AskedWorker
from ..stacks.flight_recorder import LOOK_S, FlightRecorders
from .failure_record import SHORTAGE, FailureRecords, ended_by_timer
from .parts import NodeParts
from .worker_group import WorkerGroup, WorkerGroupState

SETTLE_S = 0.2
"""How long SIGTERM is held back where the known failure may follow from one of a worker that is
just ending: SIGTERM would hide how that one ends."""

HUNG_S = 2.0
"""From SIGTERM to SIGKILL for workers that hang, or wait for one that does: they save nothing."""

_SCOPE_MAX_CHARS = 200

LEFTOVERS_S = 5.0
"""How long processes that successful workers left running may take to end after SIGTERM, unless
``--shutdown-timeout`` is shorter."""


@dataclass(frozen=True, slots=True)
class TimeOver:
    """The time for the present state of a worker group is over."""

    group: WorkerGroup
    state: WorkerGroupState


class Listener(Protocol):
    """Is told what becomes of the workers."""

    def worker_failed(self, assignment: Assignment, failure: Failure) -> None:
        """A worker of the round failed; the others here are stopped next."""

    def worker_succeeded(self, assignment: Assignment, rank: int) -> None:
        """A worker of the round, not being stopped, exited with 0."""

    def workers_done(self, assignment: Assignment) -> None:
        """All workers of the round exited with 0."""

    def workers_gone(self, assignment: Assignment, progress: Progress | None) -> None:
        """Nothing of the round is left here; the workers came so far, where that is known."""

    def goes_on(self) -> bool:
        """Return whether workers of another round may be started here."""


class Supervisor:
    """The workers of this node, one round after the other."""

    def __init__(
        self,
        node: NodeSpec,
        parts: NodeParts,
        post: Callable[[TimeOver], None],
        listener: Listener,
        event_log: EventLog,
    ) -> None:
        """Create a supervisor; ``start`` starts workers.

        Args:
            node: what this node is.
            parts: what the workers are started with.
            post: queues a timer that ran out; it comes back through ``time_over``.
            listener: is told what becomes of the workers.
            event_log: is told of their starts and exits.
        """
        self._node = node
        self._commands = parts.commands
        self._cpus = parts.cpus
        self._log_dir = parts.log_dir
        self._spawner = parts.spawner
        self._relay = parts.relay
        self._shutdown_timeout_s = parts.options.shutdown_timeout_s
        self._note = parts.display.event
        self._post = post
        self._listener = listener
        self._event_log = event_log
        self._group: WorkerGroup | None = None
        self._is_over = False
        """The listener was told that the workers are gone, or need not be."""
        self._programs: tuple[str, ...] = ()
        self._not_started: set[int] = set()
        """Local ranks whose program could not be executed; their exits are not reported again."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_settling = False
        self._is_hung = False
        """The workers are being stopped because they hang."""
        self._recorders = FlightRecorders({})
        self._limit_s: float | None = None
        """How long the workers that are being stopped have at most."""
        self._records = FailureRecords(node.host, node.role)
        self._timers = parts.timers
        self._timed_out: dict[int, str] = {}
        """Process id → name of the timer for which the worker was killed."""
        self._gpu_memory = GpuMemory(self._note)
        self._dying: Dying | None = None
        """The workers that were killed."""

    @property
    def group(self) -> WorkerGroup | None:
        """The workers of the present round, or of the last one until the listener is told.

        It is told that they are gone when the memory that they had on GPUs is free.
        """
        return None if self._is_over else self._group

    @property
    def running(self) -> tuple[AskedWorker, ...]:
        """The workers that have been started and have not exited."""
        return self.group.running if self.group is not None else ()

    @property
    def last_pids(self) -> tuple[int, ...]:
        """Process ids, by local rank, of the workers that were started last."""
        return self._group.pids if self._group is not None else ()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the timers that workers set themselves, if the user asked for them.

        What is in use on GPUs before there are workers is asked for now, while others are met.
        """
        self._gpu_memory.remember()
        if self._timers is not None:
            self._timers.listen(loop, self._timer_expired)

    # --- what the agent orders ---------------------------------------------------------------

    def start(self, assignment: Assignment) -> None:
        """Start the workers of a round. Those of earlier rounds must be gone."""
        assert self.group is None
        logs = self._log_dir.attempt(assignment.restarts, self._node.local_world_size)
        if logs.warning:
            self._note(Remark(logs.warning, Severity.WARNING))
        self._records.begin()
        self._dying = None
        self._not_started.clear()
        self._timed_out.clear()
        if self._timers is not None:
            self._timers.forget()
        self._is_settling = self._is_hung = self._is_over = False
        self._group = WorkerGroup(assignment, logs, self._node.role, self._spawner, self._relay)
        try:
            self._programs = self._group.start(self._commands, self._cpus)
        except OSError as error:
            self._failed_to_open(self._group, error)
            return
        if self._spawner.preloading:
            self._note(PreloadAwaited(assignment.round, assignment.node_rank))

    def stop(
        self,
        number: int = signal.SIGTERM,
        *,
        lets_settle: bool = False,
        is_hung: bool = False,
        patience_s: float | None = None,
    ) -> None:
        """Signal the workers to end; kill those that are left when their time is over.

        Args:
            number: the signal.
            lets_settle: first give workers that are ending by themselves a moment.
            is_hung: they hang, and are not given the time to save anything; what NCCL's flight
                recorder has of them is written first.
            patience_s: how long they have at most; None: as long as workers have.
        """
        if (group := self.group) is None:
            return
        if group.state is WorkerGroupState.GONE:
            self._tell_gone(group)  # nothing follows here: whether memory is free does not matter
            return
        if is_hung and not group.state.is_ending:
            is_said_again, self._is_hung = self._is_hung, True
            is_running = group.state is WorkerGroupState.RUNNING
            if is_running and (is_said_again or self._have_recorded(group)):
                return
        if lets_settle and group.state is WorkerGroupState.RUNNING and group.alive:
            if not self._is_settling:
                self._is_settling = True
                self._arm(group, SETTLE_S)
            return
        self._is_settling = False
        before = group.state
        group.stop(number)
        if group.state is before:
            return  # it is being stopped already, and its time runs
        if group.state is WorkerGroupState.STOPPING:
            self._limit_s = patience_s
            self._arm(group, self._patience_s)
        else:
            self._arm(group, SURVIVES_KILL_S)

    def kill(self) -> None:
        """Kill the workers at once, also those that are being stopped."""
        group = self.group
        if group is None or group.state.is_killed:
            return
        self._is_settling = False
        group.kill()
        self._arm(group, SURVIVES_KILL_S)

    def end(self, *, gently: bool) -> None:
        """End what is left: this node no longer needs its workers.

        Args:
            gently: processes that successful workers left running get SIGTERM first.
        """
        if (group := self.group) is None:
            return
        if group.state is WorkerGroupState.DONE and gently:
            if leftovers := self._leftovers(group):
                self._note(LeftoversEnded(leftovers))
            group.end_leftovers()
            self._limit_s = LEFTOVERS_S
            self._arm(group, self._patience_s)
        else:
            self.stop()

    def forget(self) -> None:
        """Forget the workers: they are gone, and the listener need not be told."""
        if self._group is not None:
            self._group.gone()
        self._is_over = True

    def close(self) -> None:
        """Cancel all timers."""
        self._gpu_memory.close()
        self._disarm()

    # --- what happened -----------------------------------------------------------------------

    async def spawned(self, event: Spawned) -> None:
        """Record the workers' start, and programs that could not be executed."""
        group = self._group
        if group is None or group.assignment.round != event.round:
            return
        group.spawned(event)
        self._event_log.started(group.assignment, group.pids)
        reasons = event.why_not(self._programs)
        if not reasons:
            at = group.assignment
            self._note(
                WorkersStarted(
                    at.round,
                    at.node_rank,
                    first_rank=at.rank_offset,
                    pids=group.pids,
                    world_size=at.world_size,
                    nodes=at.nodes,
                    store_addr=at.master_addr,
                    store_port=at.master_port,
                    store_pid=group.store_pid,
                )
            )
        self._not_started.update(reasons)
        for local_rank, why in reasons.items():
            if group.is_store(local_rank):
                self._failed(group, self._records.of_store(group, NOT_EXECUTED, why))
                continue
            code = SHORTAGE if event.is_shortage(local_rank) else NOT_EXECUTED
            self._failed(group, self._records.of_start(group.assignment, local_rank, code, why))

    async def exited(self, event: Exited) -> None:
        """Record a worker's exit and act on it."""
        group = self._group
        if group is None or group.assignment.round != event.round:
            return
        if group.is_store(event.local_rank):
            if event.local_rank not in self._not_started:
                self._store_exited(group, event.exit_code)
            return
        state = group.state
        group.exited(event)
        if self._timers is not None:
            self._timers.forget(group.pids[event.local_rank])
        self._event_log.exited(event.local_rank, event.exit_code)
        if event.exit_code and event.local_rank not in self._not_started:
            await self._worker_failed(group, event, state)
        if not event.exit_code and state is WorkerGroupState.RUNNING:
            rank = group.assignment.rank_offset + event.local_rank
            self._listener.worker_succeeded(group.assignment, rank)
        if group.state is WorkerGroupState.DONE:
            at = group.assignment
            self._note(WorkersSucceeded(at.round, at.node_rank, len(group.pids), at.nodes))
            self._listener.workers_done(at)
        elif group.state is WorkerGroupState.KILLING:
            self._arm(group, SURVIVES_KILL_S)
        if self._is_settling and not group.alive:
            self.stop()  # nothing is left to settle

    def empty(self) -> None:
        """Nothing that descends from a worker is left."""
        if (group := self.group) is None or group.state is WorkerGroupState.GONE:
            return
        group.gone()
        self._event_log.waits()
        if self._relay is not None:
            self._relay.forget(group.streams)
        free = partial(self._post, TimeOver(group, group.state))
        is_last = group.has_succeeded or not self._listener.goes_on()
        if is_last or not self._gpu_memory.when_free(free):
            self._tell_gone(group)

    async def time_over(self, event: TimeOver) -> None:
        """Take the next step to end a worker group: its time is over."""
        group = event.group
        if group is not self.group or group.state is not event.state:
            return
        if event.state is WorkerGroupState.GONE:
            self._tell_gone(group)
            return
        if event.state is WorkerGroupState.RUNNING:
            if not (self._is_hung and self._are_recording(group)):
                self.stop()  # what was ending has ended
            return
        if event.state is WorkerGroupState.KILLING:
            pids = self._spawner.left()
            if not pids:  # all were killed, and the spawner does not say so: it is of no use
                self._spawner.give_up()
                return
            now = asyncio.get_running_loop().time()
            if self._dying is not None and self._dying.go_on(pids, now):
                if self._dying.looks == 1:
                    self._note(KillOutlived(tuple(pids), SURVIVES_KILL_S, DEVICES_SURVIVE_KILL_S))
                self._arm(group, SURVIVES_KILL_S)
                return
            failure = self._records.of_stuck(group.assignment, pids)
            self._failed(group, failure)
            self.empty()
            return
        if event.state is WorkerGroupState.STOPPING:
            self._note_killed(group)
        group.kill()
        self._arm(group, SURVIVES_KILL_S)

    def _leftovers(self, group: WorkerGroup) -> tuple[int, ...]:
        """Return the processes that descend from workers and are not the store's."""
        return tuple(pid for pid in self._spawner.left() if pid != group.store_pid)

    def _note_killed(self, group: WorkerGroup) -> None:
        at, workers, limit_s = group.assignment, group.alive, self._patience_s
        left = 0 if workers else len(self._leftovers(group))
        if workers or left:
            is_option = limit_s == self._shutdown_timeout_s
            self._note(WorkersKilled(at.round, at.node_rank, workers, limit_s, is_option, left))

    def _tell_gone(self, group: WorkerGroup) -> None:
        self._is_over = True
        self._listener.workers_gone(group.assignment, group.progress)

    # --- what NCCL recorded ------------------------------------------------------------------

    def _have_recorded(self, group: WorkerGroup) -> bool:
        """Have the flight recorders of workers write; return whether any is on."""
        self._recorders = FlightRecorders(os.environ)
        now = asyncio.get_running_loop().time()
        if not self._recorders.ask([worker.rank for worker in group.running], now):
            return False
        self._arm(group, LOOK_S)
        return True

    def _are_recording(self, group: WorkerGroup) -> bool:
        """Look whether they go on, and when to look again; tell what they have written."""
        if self._recorders.are_writing(asyncio.get_running_loop().time()):
            self._arm(group, LOOK_S)
            return True
        at, recorders = group.assignment, self._recorders
        self._note(
            CollectivesRecorded(
                at.round, at.node_rank, recorders.written, recorders.late, recorders.files
            )
        )
        return False

    # --- failures ----------------------------------------------------------------------------

    async def _worker_failed(
        self, group: WorkerGroup, event: Exited, state: WorkerGroupState
    ) -> None:
        after_stop = state in (WorkerGroupState.STOPPING, WorkerGroupState.KILLING)
        if after_stop and event.exit_code < 0:
            return  # ended by our own signal, or by what that signal led to
        failure = await self._records.of_worker(group, event, after_stop=after_stop)
        timer = self._timed_out.get(failure.pid)
        self._failed(group, failure if timer is None else ended_by_timer(failure, timer))

    def _timer_expired(self, pid: int, scope: str, number: int) -> None:
        """Act on a timer that a worker or its child has set and not cancelled."""
        group = self.group
        if group is None or not number:
            return
        if any(pid in (worker, *descendants(worker)) for worker in group.pids if worker):
            at = group.assignment
            self._timed_out[pid] = scope = scope[:_SCOPE_MAX_CHARS]
            self._note(TimerExpired(at.round, at.node_rank, pid, scope))
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _failed_to_open(self, group: WorkerGroup, error: OSError) -> None:
        """No worker was started, as there was nothing to write to."""
        self._programs = ()
        why = f"its output cannot be opened: {shortage.explained(error)}"
        group.kill()  # the spawner has nothing to stop, and says so
        self._arm(group, SURVIVES_KILL_S)
        self._failed(group, self._records.of_start(group.assignment, 0, SHORTAGE, why))

    def _store_exited(self, group: WorkerGroup, exit_code: int) -> None:
        if not group.state.is_ending:
            log = group.store_log_tail(defaults.STDERR_TAIL_MAX_BYTES).decode(errors="replace")
            self._failed(group, self._records.of_store(group, exit_code, log))

    def _failed(self, group: WorkerGroup, failure: Failure) -> None:
        if not failure.after_stop:
            at = group.assignment
            self._note(WorkerFailed(at.round, at.node_rank, failure))
        self._listener.worker_failed(group.assignment, failure)
        if group.state in (WorkerGroupState.STARTING, WorkerGroupState.RUNNING):
            # The whole group stops anyway: the workers here need not wait for the order.
            self.stop(lets_settle=evidence(failure) is not Evidence.OWN)

    @property
    def _patience_s(self) -> float:
        """How long workers have to end after SIGTERM."""
        limits = [self._shutdown_timeout_s]
        limits += [HUNG_S] if self._is_hung else []
        limits += [self._limit_s] if self._limit_s is not None else []
        return min(limits)

    def _arm(self, group: WorkerGroup, seconds: float) -> None:
        """Limit the time that a group spends in its present state."""
        self._disarm()
        loop = asyncio.get_running_loop()
        if group.state is WorkerGroupState.KILLING and self._dying is None:
            self._dying = Dying(group.pids, loop.time(), have_devices=has_driver())
        self._timer = loop.call_later(seconds, self._post, TimeOver(group, group.state))

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
