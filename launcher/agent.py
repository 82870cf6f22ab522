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

from .. import exit_codes
from ..errors import (
    NodeExcludedError,
    NodeUnfitError,
    RefusedError,
    RendezvousError,
    SpawnerLostError,
)
from ..rendezvous.failure import Failure, FailureKind, signal_name
from ..rendezvous.link import LinkDown, LinkEvent, LinkLost, LinkUp, MasterLink
from ..rendezvous.matches import exit_status
from ..rendezvous.messages import (
    PROTOCOL_VERSION,
    Answer,
    Attend,
    Challenge,
    CheckOrder,
    CheckResult,
    CheckVerdict,
    Claim,
    ClaimState,
    Done,
    Excluded,
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
from .check_report import show_finding
from .check_session import CheckSession, Crew
from .claim import OwnClaim
from .display import Display
from .event_log import EventLog
from .identity import NodeIdentity
from .log_dir import LogDir
from .options import LaunchOptions
from .process_tree import descendants, kill_all
from .relay_client import RelayClient
from .report import final_report
from .spawner import become_subreaper
from .spawner_client import (
    Empty,
    Exited,
    ImageEvent,
    Spawned,
    SpawnerClient,
    SpawnerEvent,
    SpawnerGone,
)
from .supervisor import SURVIVES_KILL_S, Supervisor, TimeOver
from .version import VERSION
from .worker_command import WorkerCommands
from .worker_group import GroupState

_KILL_AGAIN_S = 0.02

_DRAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class _Signalled:
    number: int


_Event = LinkEvent | SpawnerEvent | _Signalled | TimeOver


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
        crew: Crew | None = None,
    ) -> None:
        self._options = options
        self._identity = identity
        self._port = port
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
        self._event_log = EventLog(options, identity.host, commands.argv(0)[0])
        self._workers = Supervisor(
            self._node,
            commands=commands,
            cpus=cpus,
            log_dir=log_dir,
            spawner=spawner,
            relay=relay,
            shutdown_timeout_s=options.shutdown_timeout_s,
            note=self._event,
            post=self.post,
            listener=self,
            event_log=self._event_log,
        )
        self._checks = None
        if crew is not None:
            is_all = options.checks is not None and options.checks.spec.only
            self._checks = CheckSession(crew, port.renew, self._send, is_all=is_all)
        self._has_passed = False
        """The master has found this node fit for the job."""
        self._claim = OwnClaim()
        self._started: int | None = None
        """The last round whose workers were started here."""
        self._told_to_stop = -1
        self._leaving: int | None = None
        self._exit_code: int | None = None
        self._verdict: Verdict | None = None
        self._error: Exception | None = None
        self._last_down = ""
        self.status = say.LiveStatus(options)

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
                policy=self._options.policy,
                checks=self._options.checks.spec if self._options.checks is not None else None,
                separate_store=self._options.separate_store,
            ),
            node=self._node,
            offer=self._port.offer,
            claim=self._present_claim(),
        )

    def _present_claim(self) -> Claim | None:
        claim = self._claim.present()
        return replace(claim, checked=True) if claim is not None and self._has_passed else claim

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
        if self._checks is not None:
            self._checks.prepare()
        loop.call_soon(self._adopt_orphans, loop)
        while not self._is_over():
            await self._handle(await self._events.get())
        self._workers.close()
        if self._checks is not None:
            await self._checks.rest()  # or what ends the crew would be answered by a new one
        await self._link.close()
        await self._drain()
        if self._error is not None:
            raise self._error
        assert self._exit_code is not None
        return self._exit_code

    def _is_over(self) -> bool:
        """Whether the outcome is known and nothing of the workers is left."""
        known = self._exit_code is not None or self._error is not None
        return known and self._workers.group is None

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
        name, group = signal_name(event.number), self._workers.group
        if self._leaving is not None or self._exit_code is not None:
            if event.number == signal.SIGINT and group is not None:
                self._event("a second Ctrl-C: killing what is left", logging.WARNING)
                group.kill()
            return
        self._leaving = event.number
        self._event(say.leaving(name, group.alive if group is not None else 0), logging.WARNING)
        self._send(Leave(name))
        if group is None:
            self._exit_code = exit_codes.SIGNAL_BASE + event.number
        else:
            self._workers.stop(event.number)

    # --- the master --------------------------------------------------------------------------

    async def _handle(self, event: _Event) -> None:
        match event:
            case Start(place):
                await self._rest_from_checks()
                self._start(place)
            case CheckOrder():
                self._take_order(event)
            case CheckVerdict():
                await self._take_finding(event)
            case Stop():
                self._stop(event)
            case Waiting():
                await self._waiting(event)
            case Verdict():
                self._take_verdict(event)
            case Refused(sentence):
                self._end(RefusedError(sentence))
            case Excluded(sentence):
                self._end(NodeExcludedError(sentence))
            case Challenge():
                self._send(Answer())
            case LinkUp(again):
                self._link_up(again)
            case LinkDown(reason):
                self._link_down(reason)
            case LinkLost(sentence):
                self._end(RendezvousError(sentence))
            case Spawned():
                await self._workers.spawned(event)
            case Exited():
                await self._workers.exited(event)
            case Empty():
                self._workers.empty()
            case TimeOver():
                await self._workers.time_over(event)
            case ImageEvent():
                self._event(*say.image(event, self._options.preload))
            case SpawnerGone():
                await self._spawner_gone()
            case _Signalled():
                await self._signalled(event)

    def _take_order(self, order: CheckOrder) -> None:
        assert self._checks is not None
        if self._leaving is None and self._exit_code is None and self._checks.take(order):
            self.status.checking = order.progress
            self._event(say.checking(order), logging.DEBUG)

    async def _take_finding(self, found: CheckVerdict) -> None:
        """Go on, or go: the checks of this node are over."""
        assert self._checks is not None
        if not self._checks.hear(found):
            return  # said twice
        await self._rest_from_checks()
        self._has_passed = not found.exit_code
        options = self._options.checks
        if options is not None:
            show_finding(found, self._display, options)
        if found.exit_code:
            is_warning = found.exit_code == exit_codes.CHECKS_WARNED
            what = "has passed with a warning" if is_warning else "is not fit for the job"
            sentence = f"this node {what}: {found.sentence}."
            self._end(NodeUnfitError(sentence, found.exit_code))

    async def _rest_from_checks(self) -> None:
        if self._checks is not None:
            await self._checks.rest()
            self.status.checking = ""

    def _link_up(self, again: bool) -> None:
        self.status.connected = True
        if self._checks is not None:
            self._checks.connected()
        if self._leaving is not None:
            self._send(Leave(signal_name(self._leaving)))  # the first may be lost
        if again or self._last_down:
            self._event("connected to the master" + (" again" if again else ""))
        self._last_down = ""

    def _link_down(self, reason: str) -> None:
        self.status.connected = False
        if reason != self._last_down:  # each change once
            running = self._workers.group is not None
            self._event(say.link_down(reason, running), logging.WARNING)
        self._last_down = reason

    async def _waiting(self, waiting: Waiting) -> None:
        self.status.waiting = waiting
        if waiting.spare and self._workers.group is None:
            self._claim.became_spare()
            await self._rest_from_checks()  # a spare holds no device
        self._event(say.waiting(waiting))

    def _start(self, place: Place) -> None:
        if self._leaving is not None or self._exit_code is not None:
            return
        if self._started is not None and place.round <= self._started:
            return  # said twice
        self._started = place.round
        if place.cause is not None:
            self._event(say.restart(place, self._options), logging.WARNING)
        elif place.round > 0:
            self._event(say.regroup(place))
        self._claim.started(place)
        self._workers.start(place)
        self.status.started(place)

    def _stop(self, stop: Stop) -> None:
        group = self._workers.group
        self._told_to_stop = stop.round
        if group is None or group.place.round != stop.round:
            self._claim.stopped(stop.round)
            # Also for a round that this node never heard of: it has no workers of it.
            if self._claim.knows_nothing_after(stop.round):
                self._send(Stopped(stop.round, self._port.offer))
            return
        if group.state in (GroupState.STARTING, GroupState.RUNNING, GroupState.DONE):
            self._event(say.stopping(group.place, stop.reason, group.alive))
            self._workers.stop(lets_settle=stop.lets_settle)

    def _take_verdict(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._send(Heard())
        if self._checks is not None and (missed := self._checks.missed(verdict)):
            self._end(missed)
        elif self._leaving is None:
            self._exit_code = self._exit_code_of(verdict)
        self._workers.end(gently=verdict.outcome is Outcome.SUCCEEDED)

    def _exit_code_of(self, verdict: Verdict) -> int:
        """Return the verdict's exit status, or with --propagate-exit-code the root cause's."""
        if not self._options.propagate_exit_code or verdict.outcome is not Outcome.WORKERS_FAILED:
            return verdict.exit_code
        status = exit_status(verdict.cause) if verdict.cause is not None else None
        return status or verdict.exit_code

    def _end(self, error: Exception) -> None:
        """End this node for a reason of its own."""
        if self._leaving is None and self._exit_code is None:
            self._error = error
        elif self._exit_code is None:
            self._exit_code = exit_codes.SIGNAL_BASE + (self._leaving or 0)
        self._workers.end(gently=False)

    # --- workers -----------------------------------------------------------------------------

    def worker_succeeded(self, place: Place, rank: int) -> None:
        """Where rank 0 decides, its success is that of the job."""
        if rank == 0 and self._rank0_decides():
            self.workers_done(place)

    def _rank0_decides(self) -> bool:
        return self._options.policy is not None and self._options.policy.rank0_decides

    def worker_failed(self, place: Place, failure: Failure) -> None:
        """Tell the master of a failed worker, now and in every claim."""
        if self._has_won() and failure.kind is FailureKind.WORKER:
            return  # it misses rank 0, which has succeeded
        self._claim.failed(failure)
        self._send(Failed(place.round, failure))

    def workers_done(self, place: Place) -> None:
        """Tell the master that all workers here have succeeded, or the one that decides."""
        if self._claim.state is not ClaimState.DONE:
            self._claim.done()
            self._send(Done(place.round))

    def workers_gone(self, place: Place) -> None:
        """Tell the master that nothing of the round is left here."""
        if self._has_won() and self._told_to_stop != place.round and self._leaving is None:
            return  # the verdict is on its way, from this master or a new one
        self._claim.stopped(place.round)
        if self._verdict is None:
            self._send(Stopped(place.round, self._port.renew()))
        if self._leaving is not None and self._exit_code is None:
            self._exit_code = exit_codes.SIGNAL_BASE + self._leaving

    def _has_won(self) -> bool:
        """Whether the job has succeeded by what happened here, rank 0 deciding."""
        return self._claim.state is ClaimState.DONE and self._rank0_decides()

    async def _spawner_gone(self) -> None:
        """The kernel has killed the workers; what they had started was left to this process."""
        relay = self._relay.pid if self._relay is not None else None
        for _ in range(round(SURVIVES_KILL_S / _KILL_AGAIN_S)):
            if not kill_all(pid for pid in descendants(os.getpid()) if pid != relay):
                break
            await asyncio.sleep(_KILL_AGAIN_S)
        self._workers.forget()
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
        self._event_log.ended(verdict)
        if verdict.outcome in (Outcome.WORKERS_FAILED, Outcome.POLICY_ENDED):
            self._display.report(final_report(verdict, self._options.name or self._options.script))
            if self._log_dir.keeps_files:
                self._display.event(f"logs of this node: {self._log_dir.path}")
        level = logging.INFO if verdict.exit_code == 0 else logging.ERROR
        self._display.event(say.verdict(verdict), level)

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended; None while it has not, or where this node left before."""
        return self._verdict

    @property
    def last_workers(self) -> dict[int, int]:
        """Process ids by rank of this node's workers in the last round; none for a spare."""
        first = self._claim.first_rank
        return {} if first is None else dict(enumerate(self._workers.last_pids, start=first))

    # --- output ------------------------------------------------------------------------------

    def _send(
        self, message: Failed | Done | Stopped | Leave | Answer | Heard | CheckResult
    ) -> None:
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
