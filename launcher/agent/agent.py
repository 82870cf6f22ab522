"""The agent: what one node does from attending to the verdict.

One loop takes events from one queue: messages of the master, events of workers, signals and
timers, with one method for each. The agent decides nothing for the group, never polls and never
imports torch.
"""

import asyncio
from collections.abc import Callable

from ...errors import NodeExcludedError, RefusedError, RendezvousError, SpawnerLostError
from ...events.checks import ChecksProgressed
from ...events.node import FenceLate, ThisNodeRenamed, WorkersFenced
from ...events.workers import PreloadChanged, WorkersStopped
from ...rendezvous.lease.fencing import FenceTick, Fencing
from ...rendezvous.lease.times import KILL_S
from ...rendezvous.master.link import LinkDown, LinkEvent, LinkLost, LinkUp, MasterLink
from ...rendezvous.protocol.check_messages import CheckOrder, CheckProgress, CheckVerdict
from ...rendezvous.protocol.drain_messages import Drain, MayLeave
from ...rendezvous.protocol.failure import signal_name
from ...rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Assignment,
    Attend,
    Challenge,
    ChallengeReply,
    Excluded,
    Heard,
    NodeMessage,
    Outcome,
    Refused,
    Renamed,
    Start,
    Stop,
    Verdict,
    Waiting,
)
from ...rendezvous.protocol.stacks import NoHang, StackOrder
from ...rendezvous.protocol.steps import StepsOrder
from ...values import replace
from ..machine.network import PortReservation
from ..preemption.departure import Departure, TimeToLeave
from ..preemption.gone_soon import GoneSoon
from ..preflight.session import CheckSession, Crew
from ..preflight.show import show_finding, unfit
from ..reporting.event_log import EventLog
from ..reporting.live_status import LiveStatus
from ..saver.saves import Saves
from ..spawner.client import (
    Empty,
    Exited,
    Fenced,
    ForkServerEvent,
    Spawned,
    SpawnerEvent,
    SpawnerGone,
)
from ..stacks.steps import rank_steps, steps_report
from ..version import VERSION
from .claim import OwnClaim
from .ending import Farewell, FarewellOver, JobOver, NodeEnd, Signalled, show_verdict
from .hangs import Hangs
from .identity import NodeIdentity
from .news import LinkNews, is_news, round_begun, waits
from .orphans import adopt_orphans, kill_orphans
from .parts import NodeParts
from .reports import NodeReports
from .signals import unless_asked
from .snapshots import HeldSnapshots, NodeOffers
from .supervisor import Supervisor, TimeOver

_DRAIN_S = 10.0
"""How long the workers' last output may take to appear before the verdict is printed."""

_OfLeaving = Drain | MayLeave | GoneSoon | TimeToLeave | Signalled | FarewellOver
_Event = LinkEvent | SpawnerEvent | TimeOver | FenceTick | JobOver | _OfLeaving


class Agent:
    """One node of a job. Create it and ``run`` it on an event loop."""

    def __init__(
        self,
        parts: NodeParts,
        *,
        identity: NodeIdentity,
        port: PortReservation,
        crew: Crew | None,
    ) -> None:
        """Create an agent.

        Args:
            parts: what the node was given before its event loop.
            identity: of this node, and its incarnation.
            port: where other nodes reach it, and where it would host the store.
            crew: its check workers; None without checks.
        """
        self._parts = parts
        self._identity = identity
        self._options = options = parts.options
        self._event = parts.display.event
        self._saves = Saves(self._event)
        self._snapshots = HeldSnapshots(parts.count.count, self._saves, options.snapshot_replicas)
        self._offers = NodeOffers(port, self._snapshots)
        self._node = parts.node_spec(identity, port.offer.address)
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._link: MasterLink | None = None
        program = parts.commands.argv(0)[0]
        self._event_log = EventLog(options, identity.host, program, parts.display.line)
        self._claim = OwnClaim()
        self._end = NodeEnd(options)
        self._departure = Departure(options, self._send, self.post, self._event)
        self._farewell = Farewell(
            self._end, parts, self._departure, self._is_missed, self._send, self.post
        )
        self._reports = NodeReports(
            self._claim,
            self._end,
            self._offers,
            self._send,
            self._farewell.left,
            lambda at: self._departure.are_ready(at.round),
            rank0_decides=options.policy is not None and options.policy.rank0_decides,
        )
        self._workers = Supervisor(self._node, parts, self.post, self._reports, self._event_log)
        self._checks = CheckSession(
            crew, self._offers.renew, self._send, is_all=options.only_checks
        )
        self._hangs = Hangs(options.hang, self._node.host, self._send, self._event)
        self._fencing = Fencing(
            options.rendezvous.timeouts,
            self.post,
            parts.spawner.fence,
            may_change=bool(options.rendezvous.endpoints),
        )
        self._withheld: Assignment | None = None
        """What came while it looked as if this node had no leader; it may have one."""
        self._started = -1
        """The last round whose workers were started here."""
        self._link_news = LinkNews(self._event, options.rendezvous.where)
        self.status = LiveStatus(options, lambda: rank_steps(self._workers.running))

    # --- what the launcher calls -------------------------------------------------------------

    def attend(self) -> Attend:
        """Return what this node says first on every stream, as of now."""
        offer = self._offers.offer  # the address of this host may have changed
        return Attend(
            protocol=PROTOCOL_VERSION,
            version=VERSION,
            job=self._options.job_spec(),
            node=replace(self._node, node_id=self._identity.node_id, address=offer.address),
            offer=offer,
            claim=self._claim.present(),
            leaving=signal_name(self._end.signal) if self._end.signal is not None else "",
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
        self._farewell.listen(loop)
        self._parts.spawner.listen(self.post)
        self._workers.listen(loop)
        self._snapshots.listen(loop)
        self._departure.listen(loop)
        self._departure.watch(self._options.preemption_notice)
        if (relay := self._parts.relay) is not None:
            relay.attach(loop)
        self._link = connect(self)
        self._fencing.arm()
        self._checks.prepare()
        loop.call_soon(adopt_orphans, loop)
        while not self._end.is_known or self._workers.group is not None:
            await self._handle(await self._events.get())
        for part in (self._workers, self._hangs, self._fencing):
            part.close()
        await unless_asked(self._conclude(), self._options.signals)
        self._saves.close()
        self._snapshots.close()
        self._departure.close()
        await self._checks.rest()  # or the end of the crew would start a new one
        await self._link.close()
        if relay is not None and await unless_asked(relay.aclose(_DRAIN_S), self._options.signals):
            self._parts.display.hurry()
        return self._end.status()

    # --- the master --------------------------------------------------------------------------

    def _fence(self) -> None:
        """Kill the workers: no host has led for too long."""
        group = self._workers.group
        if group is not None and not group.state.is_killed:
            self._event(WorkersFenced(self._fencing.limit_s))
            self._workers.kill()

    async def _handle(self, event: _Event) -> None:
        if is_fenced := self._fencing.is_due(event):
            self._fence()
        if isinstance(event, Stop | LinkUp | LinkDown):
            self._withheld = None
        if self._withheld is not None and not is_fenced:  # the stream has outlived the doubt
            withheld, self._withheld = self._withheld, None
            await self._start(withheld)
        match event:
            case Start() if is_fenced:
                self._withheld = event.assignment
            case Start(assignment):
                await self._start(assignment)
            case CheckOrder():
                self._take_order(event)
            case CheckProgress(text):
                self._show_progress(text)
            case CheckVerdict():
                await self._take_finding(event)
            case Stop():
                self._stop(event)
            case Waiting():
                await self._waiting(event)
            case Verdict():
                self._take_verdict(event)
            case JobOver(verdict):
                if self.verdict is None:
                    self._take_verdict(verdict)
            case Refused(sentence, is_displaced):
                if is_displaced:
                    self._workers.kill()
                self._give_up(RefusedError(sentence))
            case Excluded(sentence):
                self._workers.kill()  # if it has any, it was lost before
                self._give_up(NodeExcludedError(sentence))
            case Renamed(node_id):
                self._renamed(node_id)
            case Challenge():
                self._send(ChallengeReply())
            case StackOrder(number):
                self._hangs.report(number, self._workers.group)
            case NoHang():
                self._hangs.answered(event)
            case StepsOrder(number):
                self._send(steps_report(number, self._workers.running, self._saves.newest))
            case LinkUp(again):
                self._link_up(again)
            case LinkDown():
                self._link_down(event)
            case LinkLost(sentence):
                self._give_up(RendezvousError(sentence))
            case Spawned() | Exited() | Empty() | Fenced() | TimeOver() | SpawnerGone():
                await self._handle_workers(event)
            case ForkServerEvent():
                self._event(PreloadChanged(event.state, self._options.preload, event.text))
            case Drain() | MayLeave() | GoneSoon() | TimeToLeave() | Signalled() | FarewellOver():
                self._handle_leaving(event)

    def _renamed(self, node_id: str) -> None:
        """Another host has this one's name: what is said from now on is said as another node."""
        if node_id != self._identity.node_id:
            self._event(ThisNodeRenamed(self._identity.node_id, node_id))
            self._identity.given(node_id)
            self._checks.node_id = node_id

    def _take_order(self, order: CheckOrder) -> None:
        if self._end.is_pending and self._checks.take(order):
            self._show_progress(order.progress)

    def _show_progress(self, text: str) -> None:
        if self._end.is_pending:
            self.status.checking = text
            self._event(ChecksProgressed(text))

    async def _take_finding(self, found: CheckVerdict) -> None:
        """Go on or leave: the checks of this node are over."""
        if not self._checks.hear(found):
            return  # said twice
        await self._rest_from_checks()
        self._claim.is_checked = not found.exit_code
        if self._options.checks is not None:
            show_finding(found, self._parts.display, self._options.checks)
        if found.exit_code:
            self._give_up(unfit(found))

    async def _rest_from_checks(self) -> None:
        await self._checks.rest()
        self.status.checking = ""

    def _link_up(self, again: bool) -> None:
        self._fencing.found()
        self.status.connected = True
        self._checks.connected()
        self._hangs.repeat()
        if self._end.is_pending:
            self._departure.repeat()
        if self._end.signal is not None and self._workers.group is None:
            self._end.left()  # the master has been told, with this node's first words
        self._link_news.up(again)

    def _link_down(self, down: LinkDown) -> None:
        self._fencing.lost()
        self.status.connected = False
        self._link_news.down(down, self._claim.present())

    async def _waiting(self, waiting: Waiting) -> None:
        before, self.status.waiting = self.status.waiting, waiting
        if waiting.spare and self._workers.group is None:
            self._claim.became_spare()
            self._snapshots.drop()
            await self._rest_from_checks()  # a spare holds no device
        if is_news(waiting, before):
            self._event(waits(waiting, self._options))

    async def _start(self, assignment: Assignment) -> None:
        await self._rest_from_checks()
        if not self._end.is_pending or assignment.round <= self._started:  # or said twice
            return
        self._started = assignment.round
        if (begun := round_begun(assignment, self._options)) is not None:
            self._event(begun)
        self._claim.started(assignment)
        self._snapshots.begin(assignment)
        self._departure.begin()
        self._workers.start(assignment)
        self.status.started(assignment)

    def _stop(self, stop: Stop) -> None:
        group = self._workers.group
        self._reports.told_to_stop(stop.round)
        # The next round does without a node that will be gone.
        self._farewell.leave(self._departure.reason, self._workers)
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
        if self._parts.log_dir.keeps_files:
            self._hangs.keep(stop, group)
        self._workers.stop(lets_settle=stop.lets_settle, is_hung=stop.is_hung)

    def _take_verdict(self, verdict: Verdict) -> None:
        self._send(Heard())
        self._end.set_verdict(verdict, self._checks.missed(verdict))
        self._workers.end(gently=verdict.outcome is Outcome.SUCCEEDED)

    def _give_up(self, error: Exception) -> None:
        """End this node for a local reason, not by the job's verdict."""
        self._end.failed(error)
        self._workers.end(gently=False)

    # --- the workers -------------------------------------------------------------------------

    async def _handle_workers(self, event: SpawnerEvent | TimeOver) -> None:
        match event:
            case Spawned():
                await self._workers.spawned(event)
                self._hangs.begin(self._workers.group)
            case Exited():
                await self._workers.exited(event)
            case Empty():
                self._workers.empty()
            case TimeOver():
                await self._workers.time_over(event)
            case Fenced(late_s):
                self._fence()
                if late_s > KILL_S:
                    self._event(FenceLate(late_s))
            case SpawnerGone():
                await self._spawner_gone()

    async def _spawner_gone(self) -> None:
        """End what workers had started: the spawner is dead, the kernel has killed the workers."""
        relay = self._parts.relay
        spare = (relay.pid if relay is not None else None, self._saves.pid)
        await kill_orphans(spare=spare)
        self._workers.forget()
        self._give_up(
            SpawnerLostError(
                "the spawner process was killed, and the workers with it; nothing was left "
                "running on this node."
            )
        )

    # --- leaving and the end -----------------------------------------------------------------

    def _handle_leaving(self, event: _OfLeaving) -> None:
        match event:
            case Drain() if self._runs(event.round):
                self._departure.order(event)
            case MayLeave(number, step) if self._runs(number):
                self._farewell.leave(self._departure.reason, self._workers, step)
            case GoneSoon():
                self._farewell.gone_soon(event, self._workers)
            case TimeToLeave():
                self._farewell.leave(self._departure.reason, self._workers)
            case Signalled():
                self._farewell.signalled(event, self._workers)
            case FarewellOver():
                self._end.left()

    def _runs(self, round_number: int) -> bool:
        """Return whether workers of a round are here, or have just succeeded."""
        group = self._workers.group
        return group is not None and group.assignment.round == round_number

    async def _conclude(self) -> None:
        """Save what the workers have left, before it is gone with this node."""
        verdict = self._end.verdict
        has_succeeded = verdict is not None and verdict.outcome is Outcome.SUCCEEDED
        snapshot = None
        if self._options.save_at_breakpoint and not has_succeeded:
            if verdict is not None and verdict.saving is not None:
                snapshot = self._snapshots.part(verdict.saving)
            elif self._claim.is_first_but(verdict.failures if verdict is not None else ()):
                snapshot = self._snapshots.newest_whole()  # what all nodes have, one writes
        await self._saves.conclude(self._departure.within(self._end.time_left_s()), snapshot)

    def _is_missed(self) -> bool:
        """Return whether the master would take this node for lost, if it left now."""
        return self._claim.has_peers and not self.status.connected

    def last_word(self) -> None:
        """Print how the job ended, once, after everything else."""
        if self.verdict is not None:
            self._event_log.ended(self.verdict)
            show_verdict(self.verdict, self._parts)

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended; None while it runs, or if this node left before the end."""
        return self._end.verdict

    @property
    def last_workers(self) -> dict[int, int]:
        """Process ids by rank of this node's workers in the last round; none for a spare."""
        first = self._claim.first_rank
        return {} if first is None else dict(enumerate(self._workers.last_pids, start=first))

    def _send(self, message: NodeMessage) -> None:
        assert self._link is not None
        self._link.send(message)
