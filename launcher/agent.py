"""The agent: what one node does from attending to the verdict.

One loop takes events from one queue: what the master says, what becomes of workers, signals and
timers, with one method for each. It decides nothing for the group and never waits on a poll.
It never imports torch.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

from .. import defaults, exit_codes
from ..errors import RefusedError, RendezvousError, SpawnerLostError
from ..rendezvous.failure import Failure, signal_name
from ..rendezvous.link import LinkDown, LinkEvent, LinkLost, LinkUp, MasterLink
from ..rendezvous.messages import (
    PROTOCOL_VERSION,
    Answer,
    Attend,
    Challenge,
    Claim,
    ClaimState,
    Done,
    Failed,
    Heard,
    JobSpec,
    Leave,
    NodeSpec,
    Outcome,
    Place,
    Refused,
    Start,
    Stop,
    Stopped,
    Verdict,
    Waiting,
)
from . import events_text as say
from .address import PortReservation
from .display import Display
from .failure_record import start_failure, stuck_failure, worker_failure
from .identity import NodeIdentity
from .log_dir import LogDir
from .oom import OomWatch
from .options import LaunchOptions
from .process_tree import descendants, is_zombie, kill_all
from .relay_client import RelayClient
from .report import final_report
from .spawner import become_subreaper
from .spawner_client import Empty, Exited, Spawned, SpawnerClient, SpawnerEvent, SpawnerGone
from .version import VERSION
from .worker_command import WorkerCommands
from .worker_group import GroupState, WorkerGroup

STDERR_WAIT_S = 0.2
"""How long the report of a failure waits for the worker's last words."""

_SURVIVES_KILL_S = 10.0
"""A process that SIGKILL has not ended after this long is in uninterruptible sleep."""

_KILL_AGAIN_S = 0.02

_LEFTOVERS_S = 5.0
"""What workers that succeeded left running has this long to end after SIGTERM."""

_DRAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class _Signalled:
    number: int


@dataclass(frozen=True, slots=True)
class _TimeOver:
    """The time of a group's present state is over."""

    group: WorkerGroup
    state: GroupState


_Event = LinkEvent | SpawnerEvent | _Signalled | _TimeOver


class Agent:
    """One node of a job. Create it and ``run`` it on an event loop."""

    def __init__(
        self,
        options: LaunchOptions,
        *,
        identity: NodeIdentity,
        address: str,
        port: PortReservation,
        commands: WorkerCommands,
        local_world_size: int,
        cpus: tuple[frozenset[int], ...] | None,
        log_dir: LogDir,
        spawner: SpawnerClient,
        relay: RelayClient | None,
        display: Display,
    ) -> None:
        self._options = options
        self._identity = identity
        self._port = port
        self._commands = commands
        self._cpus = cpus
        self._log_dir = log_dir
        self._spawner = spawner
        self._relay = relay
        self._display = display
        self._node = NodeSpec(
            node_id=identity.node_id,
            incarnation=identity.incarnation,
            host=identity.host,
            address=address,
            role=options.role,
            local_world_size=local_world_size,
            wanted_rank=options.rendezvous.node_rank,
        )
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._link: MasterLink | None = None
        self._group: WorkerGroup | None = None
        self._claim: Claim | None = None
        self._started: int | None = None
        """The last round whose workers were started here."""
        self._programs: tuple[str, ...] = ()
        self._leaving: int | None = None
        self._exit_code: int | None = None
        self._verdict: Verdict | None = None
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._oom = OomWatch()
        self._last_down = ""
        self.status = say.LiveStatus(options.rendezvous)

    # --- what the launcher calls -------------------------------------------------------------

    def attend(self) -> Attend:
        """Return what this node says first on every stream, as of now."""
        rendezvous = self._options.rendezvous
        return Attend(
            protocol=PROTOCOL_VERSION,
            version=VERSION,
            job=JobSpec(
                job_id=rendezvous.job_id,
                min_nodes=rendezvous.min_nodes,
                max_nodes=rendezvous.max_nodes,
                node_unit=rendezvous.node_unit,
                max_restarts=rendezvous.max_restarts,
            ),
            node=self._node,
            offer=self._port.offer,
            claim=self._claim,
        )

    def post(self, event: _Event) -> None:
        """Take an event; it is handled in its turn."""
        self._events.put_nowait(event)

    async def run(self, connect: Callable[["Agent"], MasterLink]) -> int:
        """Attend until the job is over for this node; return the exit status.

        Args:
            connect: makes the link to the master; it calls ``attend`` and ``post``.

        Raises:
            RefusedError: the master refuses this node.
            RendezvousError: the master cannot be reached.
            SpawnerLostError: the spawner died.
        """
        loop = asyncio.get_running_loop()
        self._handle_signals(loop)
        self._spawner.listen(self.post)
        if self._relay is not None:
            self._relay.attach(loop)
        self._link = connect(self)
        loop.call_soon(self._adopt_orphans, loop)
        while not self._is_over():
            await self._handle(await self._events.get())
        if self._timer is not None:
            self._timer.cancel()
        await self._link.close()
        await self._drain()
        if self._error is not None:
            raise self._error
        assert self._exit_code is not None
        return self._exit_code

    def _is_over(self) -> bool:
        """Whether the outcome is known and nothing of the workers is left."""
        known = self._exit_code is not None or self._error is not None
        return known and (self._group is None or self._group.state is GroupState.GONE)

    # --- signals and orphans -----------------------------------------------------------------

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in self._options.signals:
            # What was ignored when we were started (nohup, a shell's background) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self.post, _Signalled(number))
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if number not in self._options.signals:
                loop.add_signal_handler(number, self._spawner.signal, number)

    def _adopt_orphans(self, loop: asyncio.AbstractEventLoop) -> None:
        """Should the spawner be killed, what it looked after becomes this process's."""
        become_subreaper()
        loop.add_signal_handler(signal.SIGCHLD, _reap)

    async def _signalled(self, event: _Signalled) -> None:
        name = signal_name(event.number)
        if self._leaving is not None or self._exit_code is not None:
            if event.number == signal.SIGINT and self._group is not None:
                self._event("a second Ctrl-C: killing what is left", logging.WARNING)
                self._group.kill()
            return
        self._leaving = event.number
        workers = self._group.alive if self._group is not None else 0
        self._event(say.leaving(name, workers), logging.WARNING)
        self._send(Leave(name))
        if self._group is None or self._group.state is GroupState.GONE:
            self._exit_code = exit_codes.SIGNAL_BASE + event.number
        else:
            self._stop_group(event.number)

    # --- the master --------------------------------------------------------------------------

    async def _handle(self, event: _Event) -> None:
        match event:
            case Start(place):
                self._start(place)
            case Stop():
                self._stop(event)
            case Waiting():
                self._waiting(event)
            case Verdict():
                self._take_verdict(event)
            case Refused(sentence):
                self._end(RefusedError(sentence))
            case Challenge():
                self._send(Answer())
            case LinkUp(again):
                self._link_up(again)
            case LinkDown(reason):
                self._link_down(reason)
            case LinkLost(sentence):
                self._end(RendezvousError(sentence))
            case Spawned():
                await self._spawned(event)
            case Exited():
                await self._exited(event)
            case Empty():
                self._gone()
            case SpawnerGone():
                await self._spawner_gone()
            case _Signalled():
                await self._signalled(event)
            case _TimeOver():
                await self._time_over(event)

    def _link_up(self, again: bool) -> None:
        self.status.connected = True
        if self._leaving is not None:
            self._send(Leave(signal_name(self._leaving)))  # the first may be lost
        if again or self._last_down:
            self._event("connected to the master" + (" again" if again else ""))
        self._last_down = ""

    def _link_down(self, reason: str) -> None:
        self.status.connected = False
        if reason != self._last_down:  # each change once
            self._event(say.link_down(reason, self._group is not None), logging.WARNING)
        self._last_down = reason

    def _waiting(self, waiting: Waiting) -> None:
        self.status.waiting = waiting
        if waiting.spare and (self._group is None or self._group.state is GroupState.GONE):
            self._become_spare()
        self._event(say.waiting(waiting))

    def _become_spare(self) -> None:
        """Claim to be in no round's world, so that no later master takes us for a member."""
        known = self._claim
        self._claim = Claim(
            round=known.round if known is not None else 0,
            restarts=known.restarts if known is not None else 0,
            nodes=0,
            node_rank=0,
            rank_offset=0,
            state=ClaimState.STOPPED,
        )

    def _start(self, place: Place) -> None:
        if self._leaving is not None or self._exit_code is not None:
            return
        if self._started is not None and place.round <= self._started:
            return  # said twice
        self._started = place.round
        assert self._group is None or self._group.state is GroupState.GONE
        if place.cause is not None:
            max_restarts = self._options.rendezvous.max_restarts
            self._event(say.restart(place, max_restarts), logging.WARNING)
        elif place.round > 0:
            self._event(say.regroup(place))
        self._claim = Claim(
            round=place.round,
            restarts=place.restarts,
            nodes=place.nodes,
            node_rank=place.node_rank,
            rank_offset=place.rank_offset,
            state=ClaimState.RUNNING,
        )
        logs = self._log_dir.attempt(place.restarts, self._node.local_world_size)
        if logs.warning:
            self._event(logs.warning, logging.WARNING)
        self._oom.has_struck()
        self._group = WorkerGroup(place, logs, self._node.role, self._spawner, self._relay)
        self._programs = self._group.start(self._commands, self._cpus)
        self.status.started(place)

    def _stop(self, stop: Stop) -> None:
        group = self._group
        if group is None or group.state is GroupState.GONE or group.place.round != stop.round:
            # Also for a round that this node never heard of: it has no workers of it.
            if self._claim is None or self._claim.round <= stop.round:
                self._send(Stopped(stop.round, self._port.offer))
            return
        if group.state in (GroupState.STARTING, GroupState.RUNNING, GroupState.DONE):
            self._event(say.stopping(group.place, stop.reason, group.alive))
            self._stop_group(signal.SIGTERM)

    def _take_verdict(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._send(Heard())
        if self._leaving is None:
            self._exit_code = verdict.exit_code
        self._end_group(gently=verdict.outcome is Outcome.SUCCEEDED)

    def _end(self, error: Exception) -> None:
        """End this node for a reason of its own."""
        if self._leaving is None and self._exit_code is None:
            self._error = error
        elif self._exit_code is None:
            self._exit_code = exit_codes.SIGNAL_BASE + (self._leaving or 0)
        self._end_group(gently=False)

    # --- workers -----------------------------------------------------------------------------

    async def _spawned(self, event: Spawned) -> None:
        group = self._group
        if group is None or group.place.round != event.round:
            return
        group.spawned(event)
        if not event.errors:
            self._event(say.started(group.place, event.pids))
        for local_rank, code in event.errors.items():
            failure = start_failure(
                group.place,
                local_rank,
                host=self._node.host,
                role=self._node.role,
                program=self._programs[local_rank],
                error=os.strerror(code),
            )
            self._failed(failure)

    async def _exited(self, event: Exited) -> None:
        group = self._group
        if group is None or group.place.round != event.round:
            return
        state = group.state
        group.exited(event)
        if event.exit_code and not self._failed_to_start(event.local_rank):
            await self._worker_failed(group, event, state)
        if group.state is GroupState.DONE and self._claim is not None:
            self._claim = replace(self._claim, state=ClaimState.DONE)
            self._event(say.done(group.place, len(group.pids)))
            self._send(Done(group.place.round))
        elif group.state is GroupState.KILLING:
            self._arm(group, _SURVIVES_KILL_S)

    def _failed_to_start(self, local_rank: int) -> bool:
        claim = self._claim
        return claim is not None and any(
            failure.local_rank == local_rank and failure.pid == 0 for failure in claim.failures
        )

    async def _worker_failed(self, group: WorkerGroup, event: Exited, state: GroupState) -> None:
        after_stop = state in (GroupState.STOPPING, GroupState.KILLING)
        if after_stop and event.exit_code < 0:
            return  # ended by our own signal, or by what that signal led to
        tail = await group.stderr_tail(
            event.local_rank, defaults.STDERR_TAIL_MAX_BYTES, 0.0 if after_stop else STDERR_WAIT_S
        )
        killed = event.exit_code == -signal.SIGKILL
        failure = worker_failure(
            group.place,
            event.local_rank,
            host=self._node.host,
            role=self._node.role,
            pid=group.pids[event.local_rank],
            exit_code=event.exit_code,
            error_file=group.logs.workers[event.local_rank].error_file,
            stderr_tail=tail,
            out_of_memory=killed and self._oom.has_struck(),
            after_stop=after_stop,
        )
        self._failed(failure)

    def _failed(self, failure: Failure) -> None:
        assert self._group is not None
        assert self._claim is not None
        group = self._group
        self._claim = replace(self._claim, failures=(*self._claim.failures, failure))
        if not failure.after_stop:
            self._event(say.failed(group.place, failure), logging.ERROR)
        self._send(Failed(group.place.round, failure))
        if group.state in (GroupState.STARTING, GroupState.RUNNING):
            # The whole group stops anyway: the workers here need not wait to be told.
            self._stop_group(signal.SIGTERM)

    def _stop_group(self, number: int) -> None:
        assert self._group is not None
        self._group.stop(number)
        if self._group.state is GroupState.STOPPING:
            self._arm(self._group, self._options.shutdown_timeout_s)
        else:
            self._arm(self._group, _SURVIVES_KILL_S)

    def _end_group(self, *, gently: bool) -> None:
        """End what is left of the workers: this node needs them no more."""
        group = self._group
        if group is None or group.state is GroupState.GONE:
            return
        if group.state is GroupState.DONE and gently:
            leftovers = [pid for pid in descendants(self._spawner.pid) if not is_zombie(pid)]
            if leftovers:
                self._event(say.leftovers(leftovers))
            group.end_leftovers()
            self._arm(group, _LEFTOVERS_S)
        else:
            self._stop_group(signal.SIGTERM)

    def _arm(self, group: WorkerGroup, seconds: float) -> None:
        """Limit the time that a group spends in its present state."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            seconds, self.post, _TimeOver(group, group.state)
        )

    async def _time_over(self, event: _TimeOver) -> None:
        group = event.group
        if group is not self._group or group.state is not event.state:
            return
        if event.state is GroupState.KILLING:
            pids = [pid for pid in descendants(self._spawner.pid) if not is_zombie(pid)]
            failure = stuck_failure(
                group.place, host=self._node.host, role=self._node.role, pids=pids
            )
            self._failed(failure)
            self._gone()
            return
        if event.state is GroupState.STOPPING:
            timeout = self._options.shutdown_timeout_s
            self._event(say.killing(group.place, group.alive, timeout), logging.WARNING)
        group.kill()
        self._arm(group, _SURVIVES_KILL_S)

    def _gone(self) -> None:
        group = self._group
        if group is None or group.state is GroupState.GONE:
            return
        group.gone()
        if self._relay is not None:
            self._relay.forget(group.streams)
        assert self._claim is not None
        self._claim = replace(self._claim, state=ClaimState.STOPPED)
        if self._verdict is None:
            self._send(Stopped(group.place.round, self._port.renew()))
        if self._leaving is not None and self._exit_code is None:
            self._exit_code = exit_codes.SIGNAL_BASE + self._leaving

    async def _spawner_gone(self) -> None:
        """The kernel has killed the workers; what they had started was left to this process."""
        relay = self._relay.pid if self._relay is not None else None
        for _ in range(round(_SURVIVES_KILL_S / _KILL_AGAIN_S)):
            if not kill_all(os.getpid(), spare=relay):
                break
            await asyncio.sleep(_KILL_AGAIN_S)
        if self._group is not None:
            self._group.gone()
        self._end(
            SpawnerLostError(
                "the spawner process was killed, and the workers with it; nothing was left "
                "running on this node."
            )
        )

    # --- the end -----------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Show all that workers have written before the last word."""
        if self._relay is not None:
            await self._relay.aclose(_DRAIN_S)

    def last_word(self) -> None:
        """Print how it ended, once, after everything else."""
        verdict = self._verdict
        if verdict is None:
            return
        if verdict.outcome is Outcome.WORKERS_FAILED:
            self._display.report(final_report(verdict, self._options.script))
            if self._log_dir.keeps_files:
                self._display.event(f"logs of this node: {self._log_dir.path}")
        level = logging.INFO if verdict.exit_code == 0 else logging.ERROR
        self._display.event(say.verdict(verdict), level)

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended; None while it has not, or where this node left before."""
        return self._verdict

    # --- output ------------------------------------------------------------------------------

    def _send(self, message: Failed | Done | Stopped | Leave | Answer | Heard) -> None:
        assert self._link is not None
        self._link.send(message)

    def _event(self, text: str, level: int = logging.INFO) -> None:
        self._display.event(text, level)


def _reap() -> None:
    """Reap whatever was adopted: as a subreaper, or as PID 1 of a container."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
