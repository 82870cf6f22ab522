"""The agent runs one node of a job, from connecting to the master until the verdict.

One loop handles all events (messages of the master, worker events, signals, timers) from one queue.
The agent makes no decisions for the group, never polls and never imports torch.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from ...errors import (
    NodeExcludedError,
    RefusedError,
    RendezvousError,
    SpawnerLostError,
    UsageError,
)
from ...events.checks import ChecksProgressed
from ...events.node import (
    DrainOrdered,
    FenceLate,
    ScaleUpAborted,
    ScaleUpOrdered,
    ThisNodeRenamed,
    WorkersFenced,
)
from ...events.workers import RoundProgressed, WorkersStopped
from ...rendezvous.lease.fencing import FenceTick, Fencing
from ...rendezvous.lease.times import KILL_S
from ...rendezvous.master.link import LinkDown, LinkEvent, LinkLost, LinkUp, MasterLink
from ...rendezvous.protocol.check_messages import CheckOrder, CheckVerdict
from ...rendezvous.protocol.drain_messages import CancelDrain, Drain, MayLeave, Notice
from ...rendezvous.protocol.failure import signal_name
from ...rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Assignment,
    Attend,
    Challenge,
    ChallengeReply,
    Excluded,
    Heard,
    Leave,
    Loaded,
    NodeMessage,
    Outcome,
    Refused,
    Renamed,
    Resigned,
    RoomMessage,
    Stop,
    Verdict,
    Waiting,
)
from ...rendezvous.protocol.stacks import NoHang, StackOrder
from ...rendezvous.protocol.steps import StepsOrder
from ...tasks import show_bug
from ..machine.network import PortReservation
from ..options import LaunchOptions
from ..preemption.draining import Draining
from ..preemption.notice import PreemptionNotice
from ..preflight.crew import CheckCrew
from ..preflight.session import CheckSession
from ..preflight.show import show_finding, unfit
from ..reporting.display import Display
from ..reporting.live_status import LiveStatus
from ..saver.saves import Saves
from ..spawner.messages import (
    Empty,
    Exited,
    Fenced,
    ForkServerEvent,
    Spawned,
    SpawnerEvent,
    SpawnerGone,
)
from ..stacks.collect import AskedWorker
from ..stacks.steps import rank_steps, steps_report
from ..tuning.job_values import Tuning
from ..version import VERSION
from ..workers.hangs import Hangs
from ..workers.orphans import adopt_orphans, kill_orphans
from ..workers.preload import Preload
from ..workers.shared_work import SharedWork
from ..workers.snapshots import HeldSnapshots, NodeOffers
from ..workers.step_events import StepEvents
from ..workers.worker_starter import WorkerStarter
from .claim import OwnClaim
from .identity import NodeIdentity, node_spec
from .lifecycle import (
    EndWorkers,
    JobOver,
    Judged,
    KillWorkers,
    Lifecycle,
    LifeEvent,
    Signalled,
    Situation,
    Starts,
    StopWorkers,
    TimeIsUp,
    Wake,
    WorkersGone,
)
from .news import LinkNews, is_news, round_begun, round_started, waits
from .reports import NodeReports
from .signals import hear, unless_asked
from .stopping import TimeOver
from .supervisor import Supervisor

_DRAIN_S = 10.0
"""Maximum time to print the workers' remaining output before the verdict."""

_OfNode = FenceTick | JobOver | Signalled | PreemptionNotice | TimeIsUp
_Event = LinkEvent | SpawnerEvent | TimeOver | _OfNode


class Agent:
    """One node of a job. Create it and ``run`` it on an event loop."""

    def __init__(
        self,
        options: LaunchOptions,
        display: Display,
        starter: WorkerStarter,
        *,
        identity: NodeIdentity,
        port: PortReservation,
        crew: CheckCrew | None,
        tuning: Tuning,
    ) -> None:
        """``port`` is the address for other nodes, where this node may host the store."""
        self._options, self._display, self._starter = options, display, starter
        self._identity = identity
        commands, size = starter.commands, starter.commands.local_world_size
        self._node = node_spec(identity, options, port.offer.address, commands)
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._wake: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

        # Shown to the user.
        self._step_events = StepEvents(
            display.event,
            lambda: self._snapshots.held(),
            tuning.progressed,
            lambda group: self._preload.learn(group),
        )
        self._event = self._step_events.note
        self._link_news = LinkNews(self._event, options.rendezvous.where)
        self.status = LiveStatus(options, lambda: rank_steps(self._workers.running))

        # Kept from one round to the next.
        self._saves = Saves(self._event, options.rendezvous.job_id)
        self._snapshots = HeldSnapshots(size, self._saves, options.snapshot_replicas)
        self._tuning = tuning
        tuning.listen(self._event, None if display.is_json else display.report)
        remembered = tuning.preload
        self._preload = Preload(options, starter, self._event, tuning.keep_preload, remembered)
        self._offers = NodeOffers(
            port, self._snapshots, lambda: tuning.carried, lambda: starter.spawner.preloading
        )

        # The part of this node in the job, and its end.
        self._link: MasterLink | None = None
        self._offered_loading = False
        """Whether this node last reported to the master that it is still importing modules."""
        self._claim, self._life, self._starts = OwnClaim(), Lifecycle(options), Starts()
        self._fencing = Fencing(
            options.rendezvous.timeouts,
            self.post,
            starter.spawner.fence,
            may_change=bool(options.rendezvous.endpoints),
        )
        self._checks = CheckSession(
            crew, self._offers.renew, self._send, is_all=options.only_checks
        )

        # The workers of a round: their requests and reports.
        self._draining = Draining(self._send, saves=options.save_on_exit)
        self._room = SharedWork(size, self._send)
        self._reports = NodeReports(
            self._claim,
            self._life,
            self._offers,
            self._send,
            lambda: self._live(WorkersGone()),
            self._draining.are_ready,
            self._room,
            rank0_decides=options.policy is not None and options.policy.rank0_decides,
        )
        self._workers = Supervisor(
            self._node,
            starter,
            options.shutdown_timeout_s,
            self.post,
            self._event,
            self._reports,
        )
        self._hangs = Hangs(
            options.hang,
            self._node.host,
            self._send,
            self._event,
            commands.environ,
            self._room.note_of,
        )

    # --- interface of the launcher -----------------------------------------------------------

    def attend(self) -> Attend:
        """Return the first message that this node sends on every stream, with current values."""
        offer = self._offers.offer  # the address of this host may have changed
        self._offered_loading = offer.is_loading
        return Attend(
            protocol=PROTOCOL_VERSION,
            version=VERSION,
            job=self._options.job_spec(),
            node=replace(self._node, node_id=self._identity.node_id, address=offer.address),
            offer=offer,
            claim=self._claim.present(),
            leaving=signal_name(self._life.signal) if self._life.signal is not None else "",
        )

    def claims(self) -> Sequence[RoomMessage]:
        """Return the messages that follow ``attend`` directly on every stream."""
        return self._room.claims()

    def progress(self) -> RoundProgressed | None:
        """Return the progress of the workers, with the time of each phase up to now."""
        return self._step_events.progress()

    def post(self, event: _Event) -> None:
        """Queue an event; events are handled in order."""
        self._events.put_nowait(event)

    async def run(self, connect: Callable[["Agent"], MasterLink]) -> int:
        """Run until the job is over for this node; return the exit code.

        The link from ``connect`` calls ``attend`` and ``post``.

        Raises:
            RefusedError: If the master refuses this node.
            NodeExcludedError: If the master excludes this node.
            RendezvousError: If the master cannot be reached.
            SpawnerLostError: If the spawner died.
        """
        self._listen(asyncio.get_running_loop())
        self._link = connect(self)
        self._fencing.arm()
        self._checks.prepare()
        while not self._life.is_decided or self._workers.group is not None:
            await self._handle(await self._events.get())
        await self._end(self._link)
        return self._life.status()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        spawner, relay = self._starter.spawner, self._starter.relay
        signals = self._options.signals
        hear(loop, signals, lambda number: self.post(Signalled(number)), pass_on=spawner.signal)
        spawner.listen(self.post)
        for part in (self._workers, self._snapshots, self._draining, self._room):
            part.listen(loop)
        if (source := self._options.preemption_notice) is not None:
            self._watch_for_notices(source, loop)
        if relay is not None:
            relay.attach(loop)
        loop.call_soon(partial(adopt_orphans, loop, spare=spawner.siblings))

    def _watch_for_notices(self, source: str, loop: asyncio.AbstractEventLoop) -> None:
        from ..preemption.watch import watch  # http.client and email are 10 ms of each start

        self._watching = loop.create_task(watch(source, os.environ, self.post, self._event))
        self._watching.add_done_callback(partial(show_bug, "--preemption-notice"))

    # --- the master --------------------------------------------------------------------------

    def _fence(self) -> None:
        """Kill the workers: there has been no leader for longer than the limit."""
        group = self._workers.group
        if group is not None and not group.state.is_killed:
            self._event(WorkersFenced(self._fencing.limit_s))
            self._workers.kill()

    async def _handle(self, event: _Event) -> None:
        if is_fenced := self._fencing.is_due(event):
            self._fence()
        if (assignment := self._starts.due(event, is_fenced=is_fenced)) is not None:
            await self._start(assignment)
        match event:
            case CheckOrder():
                self._take_order(event)
            case CheckVerdict():
                await self._take_finding(event)
            case Stop():
                self._stop(event)
            case Waiting():
                await self._waiting(event)
            case Verdict():
                self._live(Judged(event, self._checks.missed(event)))
            case JobOver(verdict) if self.verdict is None:
                self._live(Judged(verdict, self._checks.missed(verdict)))
            case Refused(sentence, is_displaced):
                if is_displaced:
                    self._workers.kill()
                self._live(RefusedError(sentence))
            case Excluded(sentence):
                self._workers.kill()  # only a node that was considered lost can still have some
                self._live(NodeExcludedError(sentence))
            case Renamed(node_id):
                self._renamed(node_id)
            case Challenge():
                self._send(ChallengeReply())
            case Resigned():
                self._claim.resigned(event)
            case RoomMessage():
                self._room.received(event)
            case StackOrder(number, inquiry):
                self._hangs.report(number, self._workers.group, inquiry)
            case NoHang():
                self._hangs.answered(event)
            case StepsOrder(number):
                self._send(steps_report(number, self._workers.running, self._saves.newest))
            case LinkUp():
                self._link_up(event)
            case LinkDown():
                self._link_down(event)
            case LinkLost(sentence):
                self._live(RendezvousError(sentence))
            case Spawned():
                self._spawned(event)
            case Exited():
                await self._workers.exited(event)
            case Empty():
                self._workers.empty()
            case TimeOver():
                self._workers.time_over(event)
            case Fenced(late_s):
                self._fence()
                if late_s > KILL_S:
                    self._event(FenceLate(late_s))
            case SpawnerGone():
                await self._spawner_gone()
            case ForkServerEvent():
                self._preload.changed(event)
                if self._offered_loading and not self._starter.spawner.preloading:
                    self._offered_loading = False
                    self._send(Loaded(self._offers.offer))
            case Drain(number, reason, seconds) if self._runs(number):
                if self._draining.order(event) and not self._life.is_preempted:
                    ordered = ScaleUpOrdered if event.grows else DrainOrdered
                    self._event(ordered(reason, seconds))
            case CancelDrain(number) if self._runs(number):
                if self._draining.cancel(event):
                    self._event(ScaleUpAborted())
            case MayLeave(number) if self._runs(number):
                self._live(event)
            case PreemptionNotice() | TimeIsUp() | Signalled():
                self._live(event)

    def _renamed(self, node_id: str) -> None:
        if node_id != self._identity.node_id:
            self._event(ThisNodeRenamed(self._identity.node_id, node_id))
            self._identity.given(node_id)
            self._checks.node_id = node_id

    def _take_order(self, order: CheckOrder) -> None:
        if self._life.goes_on and self._checks.take(order):
            self.status.checking = order.progress
            self._event(ChecksProgressed(order.progress))

    async def _take_finding(self, found: CheckVerdict) -> None:
        if not self._checks.hear(found):
            return  # a duplicate message
        await self._rest_from_checks()
        self._claim.is_checked = not found.exit_code
        if self._options.checks is not None:
            try:
                show_finding(found, self._display, self._options.checks)
            except UsageError as error:
                self._live(error)
        if found.exit_code:
            self._live(unfit(found))

    async def _rest_from_checks(self) -> None:
        await self._checks.rest()
        self.status.checking = ""

    def _link_up(self, up: LinkUp) -> None:
        self._fencing.found(up.opened_s)
        self.status.connected = True
        self._checks.connected()
        self._hangs.repeat()
        self._live(up)
        self._link_news.up(up.again)

    def _link_down(self, down: LinkDown) -> None:
        self._fencing.lost()
        self.status.connected = False
        self._link_news.down(down, self._claim.present())

    async def _waiting(self, waiting: Waiting) -> None:
        before, self.status.waiting = self.status.waiting, waiting
        if waiting.spare and self._workers.group is None:
            self._claim.became_spare()
            self._snapshots.drop()
            await self._rest_from_checks()  # a spare must not hold a device
        if is_news(waiting, before):
            self._event(waits(waiting, self._options))

    async def _start(self, assignment: Assignment) -> None:
        if (why := self._cannot_be(assignment)) is not None:
            self._live(
                RendezvousError(
                    f"invalid order of the master to start round {assignment.round}: {why}; "
                    "expected the ft-run master of this job."
                )
            )
            return
        await self._rest_from_checks()
        if not self._life.goes_on:
            return
        if (begun := round_begun(assignment, self._options)) is not None:
            self._event(begun)
        self._event(round_started(assignment, is_watched=self._options.are_workers_watched))
        self._tuning.begin(assignment)
        self._claim.started(assignment)
        self._snapshots.begin(assignment)
        self._draining.begin(assignment.round)
        self._room.begin(assignment)
        self._workers.start(assignment)
        self.status.started(assignment)

    def _cannot_be(self, at: Assignment) -> str | None:
        """Return why this start order is invalid; None if it is valid."""
        if (group := self._workers.group) is not None:
            return f"round {group.assignment.round} has not ended here"
        if at.node_rank >= at.nodes:
            return f"node rank {at.node_rank} of {at.nodes}"
        if at.rank_offset + self._node.local_world_size > at.world_size:
            return f"{self._node.local_world_size} ranks from {at.rank_offset} of {at.world_size}"
        return None

    def _stop(self, stop: Stop) -> None:
        group = self._workers.group
        self._reports.told_to_stop(stop.round)
        self._live(stop)
        if group is None or group.assignment.round != stop.round:
            self._reports.nothing_runs(stop.round)
            return
        if group.state.is_killed if stop.is_stale else group.state.is_ending:
            return
        at = group.assignment
        self._event(WorkersStopped(at.round, at.node_rank, group.alive, stop.reason, stop.is_stale))
        if stop.is_stale:
            self._workers.kill()
            return
        if self._starter.log_dir.keeps_files:
            self._hangs.keep(stop, group)
        self._workers.stop(StopWorkers(lets_settle=stop.lets_settle, is_hung=stop.is_hung))

    # --- the workers -------------------------------------------------------------------------

    def _spawned(self, event: Spawned) -> None:
        self._workers.spawned(event)
        self._hangs.begin(self._workers.group)
        self._step_events.begin(self._workers.group)
        self._tuning.started(self._workers.group)

    async def _spawner_gone(self) -> None:
        """Kill orphaned processes: the spawner is dead, and the kernel has killed the workers."""
        relay = self._starter.relay
        helpers = (relay.pid if relay is not None else None, self._saves.pid)
        await kill_orphans(spare=(*helpers, *self._starter.spawner.siblings))
        self._workers.forget()
        sentence = (
            "the spawner process was killed or did not respond, and the workers were killed with "
            "it; nothing was left running on this node."
        )
        self._live(SpawnerLostError(sentence))

    # --- leaving and the end -----------------------------------------------------------------

    def _live(self, event: LifeEvent) -> None:
        """Pass an event to ``Lifecycle`` and execute the orders that it returns."""
        group = self._workers.group
        situation = Situation(
            time.monotonic(),
            workers=group.alive if group is not None else None,
            may_save=group is not None and group.state.is_training,
            asks_for_notices=self._draining.is_asked_for,
            is_master_missed=self._claim.has_peers and not self.status.connected,
        )
        for order in self._life.handle(event, situation):
            match order:
                case Notice() | Leave() | Heard():
                    self._send(order)
                case StopWorkers():
                    self._workers.stop(order)
                case EndWorkers(gently):
                    self._workers.end(gently=gently)
                case KillWorkers():
                    self._workers.kill()
                case Wake(seconds):
                    if self._wake is not None:
                        self._wake.cancel()
                    loop = asyncio.get_running_loop()
                    self._wake = loop.call_later(seconds, self.post, TimeIsUp())
                case _:
                    self._event(order)

    def _runs(self, round_number: int) -> bool:
        """Return whether workers of a round are running here, or have just succeeded."""
        group = self._workers.group
        return group is not None and group.assignment.round == round_number

    async def _end(self, link: MasterLink) -> None:
        """Close everything after the last worker has gone; a second signal ends the waits."""
        if self._watching is not None:
            self._watching.cancel()
        for part in (self._workers, self._room, self._hangs, self._step_events, self._fencing):
            part.close()
        self._tuning.close()
        # Kubernetes terminates the remaining pods as soon as enough pods of a Job have succeeded.
        times = 2 if self._has_succeeded else 1
        await unless_asked(self._conclude(), self._options.signals, times=times)
        for kept in (self._saves, self._snapshots, self._draining):
            kept.close()
        await self._checks.rest()  # otherwise the end of the crew would start a new crew
        await link.close()
        relay, signals = self._starter.relay, self._options.signals
        if relay is not None and await unless_asked(relay.aclose(_DRAIN_S), signals):
            self._display.hurry()

    async def _conclude(self) -> None:
        """Write the workers' snapshots to storage before this node exits."""
        verdict = self._life.verdict
        snapshot = None
        if self._options.save_on_exit and not self._has_succeeded:
            if verdict is not None and verdict.saving is not None:
                snapshot = self._snapshots.part(verdict.saving)
            elif self._claim.is_first_but(verdict.failures if verdict is not None else ()):
                snapshot = self._snapshots.newest_whole()  # all nodes have it; one writes it
        await self._saves.conclude(self._life.time_left_s(time.monotonic()), snapshot)

    @property
    def _has_succeeded(self) -> bool:
        verdict = self._life.verdict
        return verdict is not None and verdict.outcome is Outcome.SUCCEEDED

    @property
    def verdict(self) -> Verdict | None:
        """The result of the job; None while it runs, or if this node left before the end."""
        return self._life.verdict

    @property
    def running(self) -> tuple[AskedWorker, ...]:
        """The workers of this node that have not exited."""
        return self._workers.running

    @property
    def assignment(self) -> Assignment | None:
        """Assignment of the current or last round of this node; None before the first round."""
        return self.status.assignment

    @property
    def snapshot_step(self) -> int:
        """Step of the newest snapshot in memory; -1 if there is none."""
        held = self._snapshots.held()
        return held.held[-1].step if held is not None and held.held else -1

    @property
    def checkpoint(self) -> tuple[float | None, float | None]:
        """Age of this node's last checkpoint, and the time between the last two, in seconds."""
        step, age_s = self._saves.newest
        return (age_s if step else None), self._saves.interval_s

    @property
    def last_workers(self) -> dict[int, int]:
        """Process IDs by rank of this node's workers in the last round; empty for a spare."""
        first = self._claim.first_rank
        return {} if first is None else dict(enumerate(self._workers.last_pids, start=first))

    def _send(self, message: NodeMessage) -> None:
        assert self._link is not None
        self._link.send(message)
