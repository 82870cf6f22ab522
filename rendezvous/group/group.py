"""The group's rules: one state machine without I/O, clock, logging or asyncio.

``handle(event, now) -> commands`` is the whole interface; ``deadline()`` says when it next wants
a ``Tick``. The master around it moves messages and time (``master``); the simulation in the
tests drives it through random histories against the invariants I1 to I7 of
docs/architecture.md.

It stands on ``rounds`` (a round's life), ``checking`` (who is fit for one) and ``joining`` (how
nodes come); here are events, time and the taking over from an earlier master.
"""

import math

from ..protocol.check_messages import CheckResult
from ..protocol.failure import Failure, node_lost
from ..protocol.messages import (
    Attend,
    Challenge,
    ChallengeReply,
    ClaimState,
    Done,
    Failed,
    Heard,
    JobSpec,
    Leave,
    NodeMessage,
    Outcome,
    Stop,
    Stopped,
    Verdict,
)
from .checks import Checks
from .events import Command, Detached, Event, GroupSettings, Received
from .examination import Examiner
from .joining import Joining
from .lobby import Lobby
from .outbox import Outbox
from .roster import Node, NodePhase
from .rounds import IN_ROUND, Rounds, stale_stop
from .silence import Judgement, Silence
from .state import GroupPhase, JobState
from .takeover import Adoption, TakeoverState

__all__ = ["Group", "GroupPhase"]


class Group:
    """The worker group of one job. See the module's text."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        master_id: str = "",
        examiner: Examiner | None = None,
    ) -> None:
        """Begin with no node and no round.

        Args:
            settings: the times to keep.
            master_id: random, one per master process; it tells worlds apart.
            examiner: begins the examinations of a job with checks.
        """
        self.state = JobState(settings or GroupSettings(), master_id)
        self.settings, self.roster = self.state.settings, self.state.roster
        self._out = Outbox()
        self._lobby = Lobby(self.state, self._out)
        checks = Checks(self.state, self._out, examiner, self._gone)
        self._rounds = Rounds(self.state, self._out, self._lobby, checks, self._gone)
        self._joining = Joining(
            self.state, self._out, self._lobby, self._rounds, examiner, self._gone
        )
        self._silence = Silence(self.settings)

    # --- what others may know ----------------------------------------------------------------

    @property
    def job(self) -> JobSpec | None:
        """The options of the job; None before its first node."""
        return self.state.job

    @property
    def phase(self) -> GroupPhase:
        """What the group as a whole is doing."""
        return self.state.phase

    @property
    def round(self) -> int:
        """The present or last round; -1 before the first."""
        return self.state.round

    @property
    def formed_by(self) -> str:
        """The master that formed the round."""
        return self.state.formed_by

    @property
    def restarts(self) -> int:
        """How many restarts were counted in the life of the job."""
        return self.state.restarts

    @property
    def restarts_in_budget(self) -> int:
        """How many of them count against ``--max-restarts`` now."""
        return self.state.restarts_in_budget

    @property
    def world_nodes(self) -> int:
        """Nodes in the world of the round."""
        return self.state.world_nodes

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended; None while it has not."""
        return self._rounds.ending.verdict if self._rounds.ending is not None else None

    # --- the interface -----------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event and return what is to be done, in order.

        Args:
            event: what happened.
            now: seconds of any clock that never goes back.
        """
        self.state.now = now
        if isinstance(event, Received):
            if self._silence.spoke():
                self._out.note("nodes are heard of again")
                # A word on a stream that never broke says that there is nothing to come back from.
                if isinstance(event.message, Attend):
                    self.roster.await_return(now + self.state.settings.adoption_grace_s)
            self._received(event.link, event.message, now)
        elif isinstance(event, Detached):
            self._link_gone(event.link, now)
        self._timers(now)
        self._advance(now)
        if self.state.phase is not GroupPhase.CHECKING:
            self._lobby.tell_newcomers(now)
        self._forget_job()
        return self._out.take()

    def deadline(self) -> float | None:
        """Return when the next ``Tick`` is wanted; None for never."""
        losses = self._silence.delayed(self.roster.next_loss())
        times = [losses, self._joining.contest.deadline(), self._rounds.rescale_at]
        if self._rounds.ending is not None:
            if self._rounds.ending.is_over:
                return None
            times.append(self._rounds.ending.until)
        elif self.state.phase is GroupPhase.GATHERING and self.state.job is not None:
            times += [self._lobby.join_deadline(), self._lobby.announce_at]
            if self.state.now < self._lobby.not_before:
                times.append(self._lobby.not_before)
            # While somebody is detached, his return or his loss comes before the last call.
            if not self.state.formed_before and self.roster.ready_attached() == len(self.roster):
                times.append(self._last_call())
        elif self.state.phase is GroupPhase.CHECKING:
            times.append(self._rounds.gate.deadline())
        elif self._rounds.adoption is not None:
            times.append(self._rounds.adoption.until)
        return min((time for time in times if time is not None), default=None)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way that takes a master.

        Then a round runs, or there are too few nodes for one, or the job is over and all who are
        there have heard of it.
        """
        if self._rounds.ending is not None:
            return self._rounds.ending.is_over
        if self.state.phase is GroupPhase.GATHERING:
            return self.state.job is None or len(self.roster) < self.state.job.min_nodes
        return self.state.phase is GroupPhase.RUNNING

    def _last_call(self) -> float | None:
        """Return when a world may be formed of those who are there; None for too few.

        Nodes with a bad link between them may be enough by their number alone.
        """
        return self._lobby.last_call() if self.state.usable(self._rounds.could_join()) else None

    def _forget_job(self) -> None:
        """Nobody is left of a job that has not begun: the next node comes to a job of its own.

        Its options and its patience are those of whoever comes first, not of one who left.
        """
        has_begun = (
            self.state.formed_before or self._rounds.adoption is not None or self.state.highest >= 0
        )
        is_waiting = (
            self.state.phase is GroupPhase.GATHERING and not self.state.aftermath.ledger.excluded
        )
        if self.state.job is not None and is_waiting and not has_begun and not len(self.roster):
            self._out.note("nobody is left of a job that has not begun")
            self._rounds.agree(None)
            self._lobby.close()

    def _gone(self, node: Node) -> None:
        """A node is gone: every part that remembers it is told here, and only here."""
        name = node.spec.node_id
        if node.rank is not None:
            self.state.former_ranks[name] = node.rank
        if self._rounds.adoption is not None:
            self._rounds.adoption.node_removed(name)
        self.roster.remove(node)
        self._rounds.gate.forget(name)
        self._joining.contest.postpone(node.spec, -math.inf)

    # --- events ------------------------------------------------------------------------------

    def _received(self, link: int, message: NodeMessage, now: float) -> None:
        node = self.roster.by_link(link)
        if isinstance(message, Attend):
            if node is None and not self._joining.contest.waits(link):
                self._joining.attend(link, message, now)
            return
        if isinstance(message, Heard):
            if self._rounds.ending is not None:
                self._rounds.ending.heard(link)
            return
        if node is None or self.state.phase is GroupPhase.FINISHED:
            return  # a stream that was replaced or refused; nothing changes a verdict
        match message:
            case Failed(round_number, failure):
                self._rounds.failed(node, round_number, failure)
            case Done(round_number):
                self._rounds.done(node, round_number)
            case Stopped(round_number, offer):
                self._rounds.stopped(node, round_number, offer, now)
            case Leave(reason):
                self._joining.rival_leaves(node)
                self._rounds.leave(node, reason)
            case ChallengeReply():
                self._joining.answered(node)
            case CheckResult():
                self._rounds.gate.result(node, message, now)

    def _link_gone(self, link: int, now: float) -> None:
        self._joining.contest.withdraw(link)
        had_heard = self._rounds.ending is not None and self._rounds.ending.gone(link)
        node = self.roster.by_link(link)
        if node is None:
            return
        if had_heard:
            self.roster.remove(node)  # it has nothing left to come back for
            return
        node.detached_at = now
        self.roster.detach(node, now + self.state.settings.node_grace_s)
        self._silence.broke()
        self._rounds.postmortem.suspect(node.spec.node_id)
        self._joining.contest.postpone(node.spec, now)
        if self._rounds.ending is None:
            self._out.note(f"node {node.spec.node_id} lost its connection")
            if self.roster.detached == len(self.roster) and self._spans_hosts():
                self._silence.all_broke(now)
                self._note_cut_off()

    def _timers(self, now: float) -> None:
        loss_at = self._silence.delayed(self.roster.next_loss())
        if loss_at is not None and loss_at <= now:
            self._grace_is_over(now)
        for newcomer in self._joining.contest.won(now):
            self._joining.displace(newcomer, now)
        if self._rounds.rescale_at is not None and self._rounds.rescale_at <= now:
            self._rounds.rescale()
        announce_at = self._lobby.announce_at
        if announce_at is not None and announce_at <= now:
            self._lobby.announce(now)

    def _grace_is_over(self, now: float) -> None:
        """Give up who is overdue, unless nothing is heard of anybody."""
        judgement = Judgement.LOST
        if self._rounds.ending is None and self._spans_hosts():
            there = [node for node in self.roster if node.link is not None]
            judgement = self._silence.judge(now, are_others_there=bool(there))
        match judgement:
            case Judgement.LOST:
                for node in self.roster.overdue(now):
                    gone_s = round(now - node.detached_at, 1)  # more than the grace, if all were
                    self._rounds.lose(node, f"its connection was gone for {gone_s:g} s")
            case Judgement.ASK:
                for node in there:
                    self._out.send(node, Challenge())
            case Judgement.KEEP:
                self._note_cut_off()

    def _note_cut_off(self) -> None:
        limit = f"{self.state.settings.master_timeout_s:g} s"
        self._out.note(f"nothing is heard of any node: the round is kept for {limit}")

    def _spans_hosts(self) -> bool:
        """Whether nodes of several hosts are in the round, workers of which may be alive."""
        hosts = {node.spec.host for node in self.roster.in_phase(*IN_ROUND)}
        return len(hosts) > 1

    def _advance(self, now: float) -> None:
        if self._rounds.adoption is not None:
            self._try_adopt(self._rounds.adoption, now)
        is_live = self.state.phase in (GroupPhase.RUNNING, GroupPhase.STOPPING)
        all_done = self.state.phase is GroupPhase.RUNNING and not self.roster.count(
            NodePhase.RUNNING
        )
        if all_done or (is_live and self._rounds.rank0_is_done):
            self._rounds.finish(Outcome.SUCCEEDED, now)
        if self.state.phase is GroupPhase.STOPPING and not self.roster.count(NodePhase.STOPPING):
            self._rounds.end_round(now)
        if self.state.phase is GroupPhase.CHECKING:
            self._rounds.advance_checks(now)
        if self.state.phase is GroupPhase.GATHERING:
            self._rounds.try_form(now)
        if self._rounds.ending is not None:
            newcomers = self._joining.contest.dissolve()
            self._out.add(self._rounds.ending.tell(newcomer.link for newcomer in newcomers))
            self._out.add(self._rounds.ending.advance(self.roster.detached, now))

    # --- taking over from an earlier master --------------------------------------------------

    def _try_adopt(self, adoption: Adoption, now: float) -> None:
        finding = adoption.judge(len(self.roster), now, self._is_there)
        if finding is TakeoverState.INCOMPLETE:
            for node_id, round_number in adoption.take_stops().items():
                node = self.roster.get(node_id)
                assert node is not None
                # Of the highest round it is a failure that ends it, for all alike.
                is_stale = round_number < adoption.round
                ordinary = Stop(round_number, f"round {round_number} is over")
                self._out.send(node, stale_stop(round_number) if is_stale else ordinary)
            return
        self._adopt(adoption, finding)
        self._judge_adopted(finding, adoption)
        for node in self.roster.in_phase(NodePhase.READY):
            self._rounds.wait(node, now)

    def _adopt(self, adoption: Adoption, finding: TakeoverState) -> None:
        """Take over the nodes of the highest round as if it were our own."""
        self._rounds.adoption = None
        self.state.formed_before = True
        self.state.round, self.state.formed_by = adoption.round, adoption.formed_by()
        self.state.phase = GroupPhase.RUNNING
        self._formed_at = None
        self._rounds.rank0_is_done = self.state.policy.rank0_decides and adoption.rank0_is_done
        members = adoption.members()
        # Also those who are not there: the policy may want one of them replaced.
        self.state.members = adoption.absent()
        self.state.members |= {claim.node_rank: name for name, claim in members.items()}
        self._keep_ranks(adoption.absent())
        self._lobby.close()
        self.state.world_nodes = len(members) + adoption.missing()
        self._out.note(
            f"round={self.state.round} taken over nodes={len(members)}/{self.state.world_nodes} "
            f"restarts={self.state.restarts} ({finding.value})"
        )
        for name, claim in adoption.claims().items():
            node = self.roster.get(name)
            if node is None:
                # It has left: what it said of its round counts all the same.
                for failure in claim.failures if name in members else ():
                    self._rounds.postmortem.remember(failure)
                continue
            if name not in members:
                if claim.state is not ClaimState.STOPPED:
                    self._rounds.stop_stale(node, claim.round)
                continue
            node.round = claim.round
            node.rank, node.rank_offset = claim.node_rank, claim.rank_offset
            for failure in claim.failures:
                self._rounds.postmortem.remember(failure)
            if claim.state is ClaimState.STOPPED:
                continue
            self.roster.move(node, NodePhase.RUNNING)
            if claim.state is ClaimState.DONE:
                self.roster.move(node, NodePhase.DONE)

    def _keep_ranks(self, absent: dict[int, str]) -> None:
        """Who was started again, or will be, takes its old rank."""
        for rank, name in absent.items():
            node = self.roster.get(name)
            if node is not None:
                node.rank = rank
            else:
                self.state.former_ranks[name] = rank

    def _not_back(self, adoption: Adoption) -> Failure | None:
        """Return the failure record of members that have not come back, the first by name."""
        gone = adoption.gone(len(self.roster), self._is_there)
        if not gone:
            return None
        absent = adoption.absent()
        # Who was started again has lost its workers, but is there.
        away = {rank: name for rank, name in absent.items() if not self._is_there(name)}
        rank = min(away, default=None)
        name = "unknown" if rank is None else away[rank]
        others = f", nor did {gone - 1} other(s)" if gone > 1 else ""
        grace = f"{self.state.settings.adoption_grace_s:g} s"
        why = (
            f"it did not come back to the new master with its workers of round {self.state.round} "
            f"within {grace}{others}"
        )
        return node_lost(rank, name.rpartition("/")[0] or name, "", why)

    def _who_returned(self, adoption: Adoption) -> str:
        """Say which members are there without workers of the round, the first by name."""
        claims = adoption.claims()
        named = [(rank, self.roster.get(name)) for rank, name in sorted(adoption.absent().items())]
        rank, node = next(((rank, node) for rank, node in named if node is not None), (0, None))
        if node is None:
            return f"members of round {self.state.round} came back anew, or had never heard of it"
        where = f"node {rank} ({node.spec.host})"
        others = adoption.missing() - 1
        if node.spec.node_id in claims:
            what = f"had never heard of round {self.state.round} when the master was lost"
            more = f", nor had {others} other(s)"
        else:
            what = f"came back anew, without its workers of round {self.state.round}"
            more = f", and so did {others} other(s)"
        return f"{where} {what}" + (more if others else "")

    def _is_there(self, node_id: str) -> bool:
        return self.roster.get(node_id) is not None

    def _judge_adopted(self, finding: TakeoverState, adoption: Adoption) -> None:
        if self._rounds.rank0_is_done:
            pass  # the job has succeeded, whatever became of the others
        elif finding is TakeoverState.FAILED:
            lost = self._not_back(adoption)
            if lost is not None:
                # Nobody knows when: it goes before what may follow from it, and before no other.
                self._rounds.postmortem.remember(lost)
            foremost = self._rounds.postmortem.foremost
            assert foremost is not None
            self._rounds.stop_round(foremost.summary(), counted=True)
        elif finding is TakeoverState.REGROUP:
            departure = adoption.departure
            reason = departure.summary() if departure else self._who_returned(adoption)
            self._rounds.stop_round(reason, counted=False, departure=departure)
        elif finding is TakeoverState.BROKEN:
            self._rounds.stop_round(finding.value, counted=False)
        else:
            leavers = [node for node in self.roster.in_phase(NodePhase.RUNNING) if node.leaving]
            for node in leavers[:1]:
                self._rounds.leave(node, node.leaving)
        for node in self.roster.in_phase(NodePhase.READY, NodePhase.DONE):
            if node.leaving:
                self._rounds.let_go(node)
