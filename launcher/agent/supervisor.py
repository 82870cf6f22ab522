"""Supervises this node's workers: starts them, classifies their exits, limits the time to stop."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ... import defaults
from ...events.event import Event, LogMessage, Severity
from ...events.preload import PreloadAwaited
from ...events.workers import (
    RoundEnded,
    TimerExpired,
    WorkerExited,
    WorkerFailed,
    WorkersStarted,
    WorkersSucceeded,
)
from ...rendezvous.protocol.failure import Evidence, Failure, evidence
from ...rendezvous.protocol.messages import Assignment, NodeSpec
from ..machine import shortage
from ..machine.gpu_memory import GpuMemory
from ..processes.tree import descendants
from ..processes.worker_exec import NOT_EXECUTED
from ..spawner.messages import Exited, Spawned
from ..stacks.collect import AskedWorker
from ..workers.failure_record import SHORTAGE, FailureRecords, ended_by_timer
from ..workers.worker_group import WorkerGroup, WorkerGroupState
from ..workers.worker_starter import WorkerStarter
from .lifecycle import StopWorkers
from .reports import NodeReports
from .stopping import GroupStop, TimeOver

_SCOPE_MAX_CHARS = 200


class Supervisor:
    """The workers of this node, round after round."""

    def __init__(
        self,
        node: NodeSpec,
        starter: WorkerStarter,
        shutdown_timeout_s: float,
        post: Callable[[TimeOver], None],
        note: Callable[[Event], None],
        reports: NodeReports,
    ) -> None:
        """``post`` queues an expired timer; the agent passes it to ``time_over``."""
        self._node = node
        self._starter, self._spawner = starter, starter.spawner
        self._shutdown_timeout_s = shutdown_timeout_s
        self._post, self._note = post, note
        self._reports = reports
        self._last: WorkerGroup | None = None
        """The workers of the current or last round."""
        self._stopping: GroupStop | None = None
        """Their stop, from the first order on."""
        self._is_over = False
        """Whether their end was reported, or need not be."""
        self._records = FailureRecords(node.host, node.role)
        self._gpu_memory = GpuMemory(note)

    @property
    def group(self) -> WorkerGroup | None:
        """The current or last workers, until reported gone (once their GPU memory is free)."""
        return self._last if not self._is_over else None

    @property
    def running(self) -> tuple[AskedWorker, ...]:
        """The workers that were started and have not exited."""
        return self.group.running if self.group is not None else ()

    @property
    def last_pids(self) -> tuple[int, ...]:
        """Process IDs, by local rank, of the most recently started workers."""
        return self._last.pids if self._last is not None else ()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen for the workers' timers, if enabled; measure the GPU memory in use before them."""
        self._gpu_memory.remember()
        if (timers := self._starter.timers) is not None:
            timers.listen(loop, self._timer_expired)

    # --- orders of the agent -----------------------------------------------------------------

    def start(self, assignment: Assignment) -> None:
        """Start the workers of a round. All workers of earlier rounds must be gone."""
        assert self.group is None
        starter = self._starter
        logs = starter.log_dir.attempt(assignment.restarts, self._node.local_world_size)
        if logs.warning:
            self._note(LogMessage(logs.warning, Severity.WARNING))
        self._records.begin()
        if starter.timers is not None:
            starter.timers.forget()
        group = WorkerGroup(assignment, logs, self._node.role, starter)
        self._last, self._stopping, self._is_over = group, None, False
        try:
            group.start()
        except OSError as error:
            self._failed_to_open(group, error)
            return
        if self._spawner.preloading:
            self._note(PreloadAwaited(assignment.round, assignment.node_rank))

    def stop(self, order: StopWorkers = StopWorkers()) -> None:  # noqa: B008 - a value
        """Send a signal to the workers, if there are any."""
        if (group := self.group) is None:
            return
        if group.state is WorkerGroupState.GONE:
            self._tell_gone(group)  # no round follows here: the GPU memory need not be free
        else:
            self._stop_of(group).stop(order)

    def kill(self) -> None:
        """Kill the workers immediately, even if they are already being stopped."""
        group = self.group
        if group is not None and not group.state.is_killed:
            self._stop_of(group).kill()

    def end(self, *, gently: bool) -> None:
        """Stop all remaining processes; ``gently``: first SIGTERM if the workers have succeeded."""
        group = self.group
        if gently and group is not None and group.state is WorkerGroupState.DONE:
            self._stop_of(group).end_leftovers()
        else:
            self.stop()

    def forget(self) -> None:
        """Discard the workers: they are gone, and that need not be reported."""
        if self._last is not None:
            self._last.gone()
            self._is_over = True

    def close(self) -> None:
        """Cancel all timers."""
        self._gpu_memory.close()
        if self._stopping is not None:
            self._stopping.close()

    def _stop_of(self, group: WorkerGroup) -> GroupStop:
        if self._stopping is None:
            self._stopping = GroupStop(
                group, self._spawner, self._shutdown_timeout_s, self._post, self._note
            )
        return self._stopping

    # --- events ------------------------------------------------------------------------------

    def spawned(self, event: Spawned) -> None:
        """Record the workers' start, and programs that could not be executed."""
        if (group := self._last) is None or group.assignment.round != event.round:
            return
        group.spawned(event)
        reasons = event.why_not(group.programs)
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
                not_started=tuple(reasons),
            )
        )
        group.not_started.update(reasons)
        for local_rank, why in reasons.items():
            if group.is_store(local_rank):
                self._failed(group, self._records.of_store(group, NOT_EXECUTED, why))
                continue
            code = SHORTAGE if event.is_shortage(local_rank) else NOT_EXECUTED
            self._failed(group, self._records.of_start(group.assignment, local_rank, code, why))

    async def exited(self, event: Exited) -> None:
        """Record a worker's exit and handle it."""
        if (group := self._last) is None or group.assignment.round != event.round:
            return
        if group.is_store(event.local_rank):
            if event.local_rank not in group.not_started:
                self._store_exited(group, event.exit_code)
            return
        state = group.state
        group.exited(event)
        if self._starter.timers is not None:
            self._starter.timers.forget(group.pids[event.local_rank])
        at, rank = group.assignment, group.assignment.rank_offset + event.local_rank
        which = rank, event.local_rank, group.pids[event.local_rank]
        self._note(WorkerExited(at.round, at.node_rank, *which, event.exit_code, state.is_ending))
        if event.exit_code and event.local_rank not in group.not_started:
            await self._worker_failed(group, event, state)
        if not event.exit_code and state is WorkerGroupState.RUNNING:
            self._reports.worker_succeeded(at, rank)
        if group.state is WorkerGroupState.DONE:
            self._note(WorkersSucceeded(at.round, at.node_rank, len(group.pids), at.nodes))
            self._reports.workers_done(at)
        if self._stopping is not None:
            self._stopping.exited()

    def empty(self) -> None:
        """Handle that no descendant of a worker is left."""
        if (group := self.group) is None or group.state is WorkerGroupState.GONE:
            return
        group.gone()
        free = partial(self._post, TimeOver(group, group.state))
        if self._is_last(group) or not self._gpu_memory.when_free(free):
            self._tell_gone(group)

    def time_over(self, event: TimeOver) -> None:
        """Take the next step of a stop: the time limit of the group's state has expired."""
        group = event.group
        if group is not self.group or group.state is not event.state:
            return
        if event.state is WorkerGroupState.GONE:
            self._tell_gone(group)
            return
        if stuck := self._stop_of(group).time_over():
            self._failed(group, self._records.of_stuck(group.assignment, stuck))
            self.empty()

    def _tell_gone(self, group: WorkerGroup) -> None:
        self._is_over = True
        at, steps = group.assignment, group.progress.furthest if group.progress is not None else -1
        self._note(RoundEnded(at.round, at.node_rank, steps, self._is_last(group)))
        self._reports.workers_gone(at, group.progress)

    def _is_last(self, group: WorkerGroup) -> bool:
        return group.has_succeeded or not self._reports.goes_on()

    # --- failures ----------------------------------------------------------------------------

    async def _worker_failed(
        self, group: WorkerGroup, event: Exited, state: WorkerGroupState
    ) -> None:
        after_stop = state in (WorkerGroupState.STOPPING, WorkerGroupState.KILLING)
        if after_stop and event.exit_code < 0:
            return  # caused by our own signal, directly or indirectly
        failure = await self._records.of_worker(group, event, after_stop=after_stop)
        timer = group.timed_out.get(failure.pid)
        self._failed(group, failure if timer is None else ended_by_timer(failure, timer))

    def _timer_expired(self, pid: int, scope: str, number: int) -> None:
        """Send the signal of a timer that a worker or its child has set and not canceled."""
        if (group := self.group) is None or not number:
            return
        if any(pid in (worker, *descendants(worker)) for worker in group.pids if worker):
            at = group.assignment
            group.timed_out[pid] = scope = scope[:_SCOPE_MAX_CHARS]
            self._note(TimerExpired(at.round, at.node_rank, pid, scope))
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _failed_to_open(self, group: WorkerGroup, error: OSError) -> None:
        """Report that no worker was started because their output could not be opened."""
        why = f"its output cannot be opened: {shortage.explained(error)}"
        self._stop_of(group).kill()  # the spawner has nothing to stop, and reports that
        self._failed(group, self._records.of_start(group.assignment, 0, SHORTAGE, why))

    def _store_exited(self, group: WorkerGroup, exit_code: int) -> None:
        if not group.state.is_ending:
            log = group.store_log_tail(defaults.STDERR_TAIL_MAX_BYTES).decode(errors="replace")
            self._failed(group, self._records.of_store(group, exit_code, log))

    def _failed(self, group: WorkerGroup, failure: Failure) -> None:
        if not failure.after_stop:
            at = group.assignment
            self._note(WorkerFailed(at.round, at.node_rank, failure))
        self._reports.worker_failed(group.assignment, failure)
        if group.state.is_training:
            # The whole group will stop: the workers here need not wait for the master's order.
            self.stop(StopWorkers(lets_settle=evidence(failure) is not Evidence.OWN))
