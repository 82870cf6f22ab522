"""This node's workers in one round: started together, supervised, stopped together.

    STARTING → RUNNING → DONE
        └─────────┴────────┴──→ STOPPING → KILLING → GONE

This module does not wait: methods record events and return the consequences.
"""

import contextlib
import enum
import os
import signal

from msgspec import Struct

from ...rendezvous.protocol.claim import Progress
from ...rendezvous.protocol.messages import Assignment
from ...rendezvous.protocol.steps import STEPS_MAX
from ..logs.log_dir import AttemptLogs, console_prefix
from ..logs.log_file import Route, Stream, StreamPlan, open_log
from ..processes.regular_file import tail_of_file
from ..processes.worker_watch import WorkerWatch
from ..spawner.client import WorkerCommand
from ..spawner.messages import Exited, Spawned
from ..stacks.collect import AskedWorker
from .worker_command import WorkerCommands
from .worker_starter import WorkerStarter


class WorkerGroupState(enum.Enum):
    """The state of the workers of a round; the module's docstring shows the legal transitions."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    STOPPING = "stopping"
    """The workers received a signal to exit; workers that ignore it are killed after a timeout."""
    KILLING = "killing"
    """SIGKILL was sent to all descendants of workers."""
    GONE = "gone"
    """No process of the round is left."""

    @property
    def is_ending(self) -> bool:
        """Whether the workers were signaled to exit, or have exited after that."""
        return self in (WorkerGroupState.STOPPING, WorkerGroupState.KILLING, WorkerGroupState.GONE)

    @property
    def is_training(self) -> bool:
        """Whether workers run, or are being started, and were not signaled to exit."""
        return self in (WorkerGroupState.STARTING, WorkerGroupState.RUNNING)

    @property
    def is_killed(self) -> bool:
        """Whether SIGKILL was sent to all descendants of workers, or none are left."""
        return self in (WorkerGroupState.KILLING, WorkerGroupState.GONE)


class _Worker(Struct):
    pid: int = 0
    exit_code: int | None = None
    stderr_stream: int | None = None
    """The relay's stream number of its standard error, if that goes through the relay."""
    watch: WorkerWatch | None = None


class WorkerGroup:
    """The workers of one round on this node."""

    def __init__(
        self, assignment: Assignment, logs: AttemptLogs, role: str, starter: WorkerStarter
    ) -> None:
        self.assignment = assignment
        self.logs = logs
        self.state = WorkerGroupState.STARTING
        self._role = role
        self._starter, self._spawner, self._relay = starter, starter.spawner, starter.relay
        self._workers = [_Worker() for _ in logs.workers]
        self._store: _Worker | None = None
        """The store process, if this node hosts one; the spawner's next index."""
        self._has_spared = False
        """Whether processes may be left that have not received SIGTERM."""
        self.programs: tuple[str, ...] = ()
        self.not_started: set[int] = set()
        """Local ranks whose program could not be executed; their exits are not reported again."""
        self.timed_out: dict[int, str] = {}
        """Process ID → name of the timer for which the worker was killed."""
        self.progress: Progress | None = None
        """The final progress of the workers, once they have exited; None if unknown."""

    def start(self) -> None:
        """Order all workers from the spawner, with one request.

        Raises:
            OSError: If their output cannot be opened; then no worker is started.
        """
        commands, cpus = self._starter.commands, self._starter.cpus
        requests: list[WorkerCommand] = []
        fds: list[int] = []
        try:
            for local_rank, logs in enumerate(self.logs.workers):
                if commands.options.are_workers_watched:
                    self._workers[local_rank].watch = WorkerWatch()
                requests.append(
                    WorkerCommand(
                        argv=commands.argv(local_rank),
                        env=commands.env(self.assignment, local_rank, logs.error_file),
                        stdout=self._open(local_rank, Stream.STDOUT, fds),
                        stderr=self._open(local_rank, Stream.STDERR, fds),
                        cpus=cpus[local_rank] if cpus else None,
                        watch=self._workers[local_rank].watch,
                        captures_errors=commands.capture_errors,
                    )
                )
            if commands.options.separate_store and self.assignment.node_rank == 0:
                requests.append(self._store_request(commands, fds))
            self._spawner.spawn(self.assignment.round, requests)
        finally:
            for fd in fds:
                os.close(fd)
        self.programs = tuple(request.argv[0] for request in requests)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process IDs by local rank."""
        return tuple(worker.pid for worker in self._workers)

    @property
    def running(self) -> tuple[AskedWorker, ...]:
        """The workers that were started and have not exited."""
        return tuple(
            AskedWorker(self.assignment.rank_offset + local_rank, worker.pid, worker.watch)
            for local_rank, worker in enumerate(self._workers)
            if worker.pid and worker.exit_code is None
        )

    @property
    def watches(self) -> tuple[WorkerWatch | None, ...]:
        """The files of the workers by local rank, until ``gone``; None if it is not watched."""
        return tuple(worker.watch for worker in self._workers)

    @property
    def has_first_exited(self) -> bool:
        """Return whether the worker with local rank 0 has exited."""
        return self._workers[0].exit_code is not None

    @property
    def store_pid(self) -> int | None:
        """Process ID of the store process; None if this node does not host it."""
        return self._store.pid if self._store is not None else None

    def is_store(self, index: int) -> bool:
        """Return whether the spawner's index is that of the store process."""
        return index == len(self._workers)

    @property
    def alive(self) -> int:
        """Number of workers that have not exited."""
        return sum(worker.exit_code is None for worker in self._workers)

    @property
    def has_succeeded(self) -> bool:
        """Whether all workers have exited with 0."""
        return all(worker.exit_code == 0 for worker in self._workers)

    def spawned(self, event: Spawned) -> None:
        """Record the process IDs."""
        started = self._workers if self._store is None else [*self._workers, self._store]
        for worker, pid in zip(started, event.pids, strict=True):
            worker.pid = pid
        if self.state is WorkerGroupState.STARTING:
            self.state = WorkerGroupState.RUNNING

    def exited(self, event: Exited) -> None:
        """Record an exit; after the last one, the round is done, or its leftovers are ended."""
        self._workers[event.local_rank].exit_code = event.exit_code
        self._has_spared |= event.has_spared
        if self.alive:
            return
        if self.state is WorkerGroupState.STOPPING:
            if self._has_spared:
                self._spawner.terminate_all()
            else:
                self.kill()
        elif self.state is WorkerGroupState.RUNNING and not any(w.exit_code for w in self._workers):
            self.state = WorkerGroupState.DONE

    def store_log_tail(self, max_bytes: int) -> bytes:
        """Return the last bytes of the store process's output."""
        path = self._store_log
        return tail_of_file(path, max_bytes) if path is not None else b""

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to all workers; ``kill`` must follow after the timeout."""
        if not self.state.is_ending:
            self.state = WorkerGroupState.STOPPING
            if self.alive:
                self._spawner.stop(number)
            else:
                self.kill()

    def end_leftovers(self) -> None:
        """Send SIGTERM to processes that successful workers left running; ``gone`` follows."""
        assert self.state is WorkerGroupState.DONE
        self.state = WorkerGroupState.STOPPING
        self._spawner.terminate_all()

    def kill(self) -> None:
        """Send SIGKILL to all descendants of workers; ``gone`` follows."""
        if self.state is not WorkerGroupState.GONE:
            self.state = WorkerGroupState.KILLING
            self._spawner.kill()

    def gone(self) -> None:
        """Record that no process of the round is left."""
        if self.state is not WorkerGroupState.GONE:
            self.progress = self._came_so_far()
        self.state = WorkerGroupState.GONE
        for worker in self._workers:
            if worker.watch is not None:
                worker.watch.close()
                worker.watch = None

    def _came_so_far(self) -> Progress | None:
        """Return the workers' progress; None if some may have progressed further."""
        known = [watch.progress() if watch is not None else None for watch in self.watches]
        there = [progress for progress in known if progress is not None]
        has_stepped = any(progress.ticks for progress in there)
        if not has_stepped and len(there) < len(known):
            return None
        furthest = max(progress.furthest for progress in there)
        return Progress(min(furthest, STEPS_MAX), has_stepped)

    async def stderr_tail(self, local_rank: int, max_bytes: int, timeout_s: float) -> bytes:
        """Return the last bytes of a worker's standard error, if they were captured."""
        number = self._workers[local_rank].stderr_stream
        if number is not None and self._relay is not None:
            # A child of the worker may keep the pipe open: then the output so far is used.
            await self._relay.drained([number], timeout_s)
        plan = self.logs.workers[local_rank].streams[Stream.STDERR]
        return tail_of_file(plan.path, max_bytes) if plan.path is not None else b""

    @property
    def _store_log(self) -> str | None:
        directory = self.logs.directory
        return os.path.join(directory, "store.log") if directory is not None else None

    def _store_request(self, commands: WorkerCommands, fds: list[int]) -> WorkerCommand:
        """Return the order for the store process; descriptors to close are added to ``fds``."""
        self._store = _Worker()
        output = None
        if self._store_log is not None:
            with contextlib.suppress(OSError):  # a full disk: it writes to the agent's streams
                output = open_log(self._store_log)
                fds.append(output)
        return WorkerCommand(
            argv=commands.store_argv(self.assignment),
            env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdout=output,
            stderr=output,
            service=True,
        )

    def _open(self, local_rank: int, stream: Stream, fds: list[int]) -> int | None:
        """Return the descriptor for a worker's stream, and add it to ``fds``; None to inherit."""
        plan = self.logs.workers[local_rank].streams[stream]
        match plan.route:
            case Route.INHERIT:
                return None
            case Route.DISCARD:
                fd = os.open(os.devnull, os.O_WRONLY)
            case Route.FILE:
                assert plan.path is not None
                fd = open_log(plan.path)
            case Route.RELAY:
                fd = self._open_relayed(local_rank, stream, plan)
        fds.append(fd)
        return fd

    def _open_relayed(self, local_rank: int, stream: Stream, plan: StreamPlan) -> int:
        assert self._relay is not None
        rank = self.assignment.rank_offset + local_rank
        prefix = console_prefix(self._role, rank, local_rank, self.logs.prefix_template)
        opened = self._relay.add_stream(stream, prefix, plan)
        if stream is Stream.STDERR:
            self._workers[local_rank].stderr_stream = opened.number
        return opened.write_fd
