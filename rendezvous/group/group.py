"""The group's rules: a state machine without I/O, clock, logging or asyncio.

Its interface is ``handle(event, now) -> commands``; ``deadline()`` returns when it next needs a
``Tick``. ``master`` moves messages and time; the simulation in the tests drives it through random
histories against the invariants I1 to I7 of docs/internals/architecture.md.

Its parts are ``joining`` (how nodes join), ``formation`` (when a round is formed and of which
nodes), ``rounds`` (the life of a round), ``drains`` (before the world changes as planned),
``checks`` (the gate before a world), ``takeover`` (rounds of an earlier master), ``waiting``,
``liveness`` and ``ending``. They share a ``JobState`` and an ``Outbox``. This module passes events
and time to them, and notifies every part of a removed node. Other rooms, such as shared work, are
notified of that and of the start of a round, and of nothing else.
"""

import math

from ...events.master import JobForgotten, NodeDisconnected, NodesRespondAgain, NoNodeResponds
from ..protocol.bounds import SHORT_TEXT_MAX_CHARS
from ..protocol.check_messages import CheckResult
from ..protocol.drain_messages import Drained, Notice
from ..protocol.messages import (
    Attend,
    Challenge,
    ChallengeReply,
    Done,
    Failed,
    Heard,
    JobSpec,
    Leave,
    Loaded,
    NodeMessage,
    Outcome,
    Resigned,
    Stopped,
    Verdict,
)
from .checks import Checks
from .drains import Drains
from .ending import Ending
from .events import (
    Command,
    Detached,
    Event,
    GroupSettings,
    Hung,
    NodeGone,
    Received,
    Renewed,
    RoundBegan,
)
from .examination import Examiner
from .formation import Formation
from .joining import Joining
from .liveness import Judgement, Liveness
from .outbox import Outbox
from .phases import NAMES, Checking, Gathering, GroupPhase, Running, Stopping
from .roster import Node, NodePhase
from .rounds import IN_ROUND, Rounds
from .state import JobState
from .takeover import Takeover
from .waiting import WaitingNodes

__all__ = ["Group", "GroupPhase"]


class Group:
    """The worker group of one job. See the module's docstring."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        master_id: str = "",
        examiner: Examiner | None = None,
    ) -> None:
        self.state = JobState(settings or GroupSettings(), master_id)
        self.settings, self.roster = self.state.settings, self.state.roster
        self._out = Outbox()
        self._waiting = WaitingNodes(self.state, self._out)
        checks = Checks(self.state, self._out, examiner, self._gone)
        self._rounds = Rounds(self.state, self._out, self._waiting, checks, self._gone)
        self._formation = Formation(self.state, self._out, self._waiting, self._rounds)
        self._joining = Joining(
            self.state, self._out, self._waiting, self._rounds, examiner, self._gone
        )
        self._liveness = Liveness(self.settings)
        self._drains = Drains(self.state, self._out, self._rounds)
        self._begun = (0, -1)
        """Term and number of the last round that other rooms were told of."""

    # --- state -------------------------------------------------------------------------------

    @property
    def job(self) -> JobSpec | None:
        """Options of the job; None before its first node."""
        return self.state.job

    @property
    def phase(self) -> GroupPhase:
        """The current phase."""
        return NAMES[type(self.state.phase)]

    @property
    def round(self) -> int:
        """The current or last round; -1 before the first."""
        return self.state.round

    @property
    def restarts(self) -> int:
        """Number of counted restarts in the life of the job."""
        return self.state.restarts

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on the job; None until it ends."""
        return self.state.phase.verdict if isinstance(self.state.phase, Ending) else None

    @property
    def last_stop(self) -> str:
        """Why the last round ended, or is being ended, as text; empty if none has."""
        return self._rounds.postmortem.reason or self._rounds.reason_before

    # --- the interface -----------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Process an event at ``now``, in monotonic seconds; return the commands in order."""
        self.state.now = now
        if isinstance(event, Received):
            if self._liveness.spoke():
                self._out.note(NodesRespondAgain())
                # A message on an unbroken stream does not imply that other nodes had to reconnect.
                if isinstance(event.message, Attend):
                    self.roster.await_return(now + self.settings.takeover_grace_s)
            self._received(event.link, event.message, now)
        elif isinstance(event, Detached):
            self._link_gone(event.link, now)
        elif isinstance(event, Renewed):
            if (node := self.roster.by_link(event.link)) is not None:
                node.offer = event.offer
        elif isinstance(event, Hung):
            self._rounds.hung(event)
        self._timers(now)
        self._advance(now)
        while won := self._joining.contest.won(now):  # their rivals have just been removed
            for newcomer in won:
                self._joining.displace(newcomer, now)
            self._advance(now)
        if not isinstance(self.state.phase, Checking):
            self._waiting.tell_newcomers(now)
        self._forget_job()
        return self._out.take()

    @property
    def is_waiting(self) -> bool:
        """Whether workers of an earlier leader may be alive."""
        return self.state.now < self.state.starts_from

    def end_wait(self) -> None:
        """Allow rounds from the next event on, because no earlier leader has started any worker."""
        self.state.starts_from = -math.inf

    def resign(self, now: float) -> list[Command]:
        """Return the last messages to the nodes of a leader that resigns between two rounds.

        They put the leader's decision on the last round into the nodes' claims, so that the next
        leader neither repeats it nor considers nodes lost that left in order. If every worker is
        known to be dead, the next leader does not wait for that.
        """
        state = self.state
        if not state.settings.term or not isinstance(state.phase, Gathering | Checking):
            return []
        reachable = [node for node in self.roster if node.link is not None]
        is_clear = now >= max(state.starts_from, state.unreached_until) and not self.roster.count(
            NodePhase.STALE
        )
        resigned = Resigned(
            round=max(0, state.round),
            formed_by=state.formed_by,
            reason=(self.last_stop or "its leader resigned")[:SHORT_TEXT_MAX_CHARS],
            restarts=state.restarts,
            past=state.aftermath.past(state.policy, now),
            clear=state.settings.term if is_clear else 0,
        )
        for node in reachable:
            self._out.send(node, resigned)
        return self._out.take()

    def deadline(self) -> float | None:
        """Return when the next ``Tick`` is needed; None if never."""
        losses = self._liveness.delayed(self.roster.next_loss())
        times = [losses, self._joining.contest.deadline()]
        match self.state.phase:
            case Ending() as ending:
                if ending.is_over:
                    return None
                times.append(ending.until)
            case Gathering() if self.state.job is not None:
                times += self._gathering_deadlines()
            case Checking():
                times.append(self._rounds.gate.deadline())
            case Takeover() as takeover:
                times.append(takeover.until)
            case Running() as running if running.is_growing:
                times.append(min(running.rescale_at, running.grows_until))
        return min((time for time in times if time is not None), default=None)

    def _gathering_deadlines(self) -> list[float | None]:
        # Rounds cannot be formed before this time, so later deadlines do not matter.
        if self.state.now < self._waiting.opens_at:
            return [self._waiting.opens_at, self._waiting.announce_at]
        times = [self._waiting.join_deadline(), self._waiting.announce_at]
        # While a node is detached, its return or its loss comes before the last call.
        if not self.state.formed_before and self.roster.ready_attached() == len(self.roster):
            times.append(self._last_call())
        return times

    @property
    def is_settled(self) -> bool:
        """Whether nothing in progress needs a master.

        Then a round is running, or there are too few nodes for one, or the job has ended and all
        connected nodes have received its verdict.
        """
        match self.state.phase:
            case Ending() as ending:
                return ending.is_over
            case Gathering():
                return self.state.job is None or len(self.roster) < self.state.job.min_nodes
            case phase:
                return isinstance(phase, Running)

    def _last_call(self) -> float | None:
        """Return when a world can be formed of the connected nodes; None if too few fit in one."""
        return (
            self._waiting.last_call() if self.state.usable(self._rounds.gate.may_join()) else None
        )

    def _forget_job(self) -> None:
        """Forget a job that has not started and has no node left, so the next one can differ."""
        has_begun = self.state.formed_before or self.state.highest >= 0
        is_gathering = isinstance(self.state.phase, Gathering)
        is_waiting = is_gathering and not self.state.aftermath.ledger.excluded
        if self.state.job is not None and is_waiting and not has_begun and not len(self.roster):
            self._out.note(JobForgotten())
            self._rounds.agree(None)
            self._waiting.close()

    def _gone(self, node: Node) -> None:
        """Remove a node from all parts of the group. All removals go through here."""
        name = node.spec.node_id
        if node.rank is not None:
            self.state.former_ranks[name] = node.rank
        if node.phase in (NodePhase.RUNNING, NodePhase.STOPPING, NodePhase.STALE):
            self.state.unreached_until = self.state.now + self.settings.wait_s
        if isinstance(self.state.phase, Takeover):
            self.state.phase.node_removed(name)
        self.roster.remove(node)
        self._rounds.gate.forget(name)
        self._drains.forget(name)
        self._out.add([NodeGone(node.spec.incarnation)])
        self._joining.contest.postpone(node.spec, -math.inf)

    # --- events ------------------------------------------------------------------------------

    def _received(self, link: int, message: NodeMessage, now: float) -> None:
        node, phase = self.roster.by_link(link), self.state.phase
        if isinstance(message, Attend):
            if node is None and not self._joining.contest.waits(link):
                self._joining.attend(link, message, now)
            return
        if isinstance(message, Heard):
            if isinstance(phase, Ending):
                phase.heard(link)
            return
        if node is None or isinstance(phase, Ending):
            return  # a stream that was replaced or refused; a verdict is final
        if isinstance(phase, Takeover) and phase.take(node, message):
            return
        match message:
            case Failed(round_number, failure):
                self._rounds.failed(node, round_number, failure)
            case Done(round_number):
                self._rounds.done(node, round_number)
            case Stopped(round_number, offer, progress):
                self._rounds.stopped(node, round_number, offer, progress, now)
            case Loaded(offer):
                self._rounds.loaded(node, offer, now)
            case Leave(reason):
                self._joining.rival_leaves(node)
                self._rounds.leave(node, reason)
            case Notice():
                self._drains.noticed(node, message)
            case Drained():
                self._drains.drained(node, message)
            case ChallengeReply():
                self._joining.answered(node, now)
            case CheckResult():
                self._rounds.gate.result(node, message, now)

    def _link_gone(self, link: int, now: float) -> None:
        self._joining.contest.withdraw(link)
        phase = self.state.phase
        had_heard = isinstance(phase, Ending) and phase.gone(link)
        node = self.roster.by_link(link)
        if node is None:
            return
        if had_heard:
            self._gone(node)  # it has no reason to reconnect
            return
        node.detached_at = now
        self.roster.detach(node, now + self.settings.node_grace_s)
        self._liveness.broke()
        self._rounds.postmortem.suspect(node.spec.node_id)
        self._joining.contest.postpone(node.spec, now)
        if not isinstance(phase, Ending):
            self._out.note(NodeDisconnected(node.spec.node_id))
            if self.roster.detached == len(self.roster) and self._spans_hosts():
                self._liveness.all_broke(now)
                self._note_cut_off()

    def _timers(self, now: float) -> None:
        loss_at = self._liveness.delayed(self.roster.next_loss())
        if loss_at is not None and loss_at <= now:
            self._grace_is_over(now)
        for newcomer in self._joining.contest.won(now):
            self._joining.displace(newcomer, now)
        if isinstance(self.state.phase, Running) and self.state.phase.rescale_at <= now:
            self._drains.rescale(self.state.phase)
        announce_at = self._waiting.announce_at
        is_due = announce_at is not None and announce_at <= now
        if is_due and not isinstance(self.state.phase, Takeover):  # in which workers may run
            self._waiting.announce(now)

    def _grace_is_over(self, now: float) -> None:
        """Give up the overdue nodes, unless no node responds at all."""
        judgement = Judgement.LOST
        if not isinstance(self.state.phase, Ending) and self._spans_hosts():
            there = [node for node in self.roster if node.link is not None]
            judgement = self._liveness.judge(now, are_others_there=bool(there))
        match judgement:
            case Judgement.LOST:
                for node in self.roster.overdue(now):
                    gone_s = round(now - node.detached_at, 1)  # can exceed the grace period
                    self._rounds.lose(node, f"no connection for {gone_s:g} s")
            case Judgement.ASK:
                for node in there:
                    self._out.send(node, Challenge())
            case Judgement.KEEP:
                self._note_cut_off()

    def _note_cut_off(self) -> None:
        self._out.note(NoNodeResponds(self.settings.master_timeout_s))

    def _spans_hosts(self) -> bool:
        """Whether nodes of several hosts are in the round, whose workers may be alive."""
        hosts = {node.spec.host for node in self.roster.in_phase(*IN_ROUND)}
        return len(hosts) > 1

    def _advance(self, now: float) -> None:
        """Run all phase transitions that are possible now; one can enable others further down."""
        if isinstance(phase := self.state.phase, Takeover):
            self._try_take_over(phase, now)
        if isinstance(phase := self.state.phase, Running | Stopping):
            all_done = isinstance(phase, Running) and not self.roster.count(NodePhase.RUNNING)
            if all_done or phase.rank0_is_done:
                self._rounds.finish(Outcome.SUCCEEDED, now, rank0_alone=phase.rank0_is_done)
            elif isinstance(phase, Stopping) and not self.roster.count(NodePhase.STOPPING):
                self._rounds.end_round(phase, now)
        if isinstance(self.state.phase, Checking):
            self._formation.advance_checks(now)
        if isinstance(self.state.phase, Gathering):
            self._formation.try_form(now)
        if isinstance(phase := self.state.phase, Running):
            self._drains.advance(phase)
            self._tell_begin()
        if isinstance(phase := self.state.phase, Ending):
            newcomers = self._joining.contest.dissolve()
            self._out.add([phase.tell(newcomer.link) for newcomer in newcomers])
            self._out.add(phase.advance(self.roster.detached, now))

    def _tell_begin(self) -> None:
        """Tell other rooms once that a round runs."""
        if self._begun != self.state.formed:
            self._begun = self.state.formed
            members = self.roster.in_phase(NodePhase.RUNNING, NodePhase.DONE)
            names = frozenset(node.spec.incarnation for node in members)
            self._out.add([RoundBegan(self.state.round, names)])

    def _try_take_over(self, takeover: Takeover, now: float) -> None:
        taken = takeover.decide(now)
        if taken is not None:
            self._rounds.take_over(taken, now)
            self._drains.taken_over()
            return
        for node_id, stop in takeover.take_stops():
            node = self.roster.get(node_id)
            assert node is not None
            self._out.send(node, stop)
