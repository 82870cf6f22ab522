"""A round's life: formed, running, being stopped, over; and the end of the job. Pure.

This is the lower part of ``group.Group``. It knows who is there and what they report, but not
how they come: that is ``joining``.
"""

import math

from ..policy.decision import RoundDecision
from ..policy.postmortem import Postmortem
from ..protocol.failure import Evidence, Failure, evidence, node_lost, preempted
from ..protocol.messages import Assignment, ClaimState, Excluded, Outcome, Past, Start, Stop
from ..protocol.offer import Offer
from .ending import Ending, sentence_of, spent, verdict_of
from .lobby import Lobby
from .outbox import Outbox
from .roster import Node, NodePhase
from .state import GroupPhase, JobState
from .takeover import Adoption
from .world import Candidate, World, form, largest_size, order, usable_size

_DELAY_TOLD_S = 1.0
IN_ROUND = (NodePhase.RUNNING, NodePhase.DONE, NodePhase.STOPPING)


def stale_stop(round_number: int) -> Stop:
    """Return the order to kill the workers of a round that the others have left behind."""
    return Stop(round_number, f"round {round_number} is over", is_stale=True)


class Rounds:
    """The rounds of one job, and what its nodes report of them."""

    def __init__(self, state: JobState, out: Outbox) -> None:
        self._state, self._roster, self._out = state, state.roster, out
        self._lobby = Lobby(state, out)
        self._adoption: Adoption | None = None
        self._ending: Ending | None = None
        self._postmortem = Postmortem()
        self._answer = RoundDecision()
        """To the end of the last round."""
        self._rescale_at: float | None = None
        self._formed_at: float | None = None
        """When the round was formed; None when an earlier master did it."""
        self._ran_s: float | None = None
        """How long the round ran until it was stopped; None where that is not known."""
        self._rank0_is_done = False

    # --- what nodes report -------------------------------------------------------------------

    def _failed(self, node: Node, round_number: int, failure: Failure) -> None:
        if self._adoption is not None:
            self._adoption.update(node.spec.node_id, round_number, failure=failure)
        elif node.round == round_number == self._state.round and node.phase in IN_ROUND:
            self._postmortem.remember(failure)
            if self._state.phase is GroupPhase.RUNNING:
                is_certain = evidence(failure) is Evidence.OWN
                self._break(failure.summary(), counted=True, lets_settle=not is_certain)

    def _done(self, node: Node, round_number: int) -> None:
        if self._adoption is not None:
            self._adoption.update(node.spec.node_id, round_number, state=ClaimState.DONE)
        elif node.round == round_number and node.phase in IN_ROUND:
            # Also when a peer that misses rank 0 has made the round end meanwhile.
            self._rank0_is_done |= self._state.policy.rank0_decides and node.rank == 0
            if node.phase is NodePhase.RUNNING:
                self._roster.move(node, NodePhase.DONE)

    def _stopped(self, node: Node, round_number: int, offer: Offer, now: float) -> None:
        if self._adoption is not None:
            node.offer = offer
            self._adoption.update(node.spec.node_id, round_number, state=ClaimState.STOPPED)
            return
        if node.round != round_number or node.phase is NodePhase.READY:
            return
        was_stale = node.phase is NodePhase.STALE
        if node.phase in (NodePhase.RUNNING, NodePhase.DONE):
            self._break(f"node {node.rank} ({node.spec.host}) stopped its workers", counted=True)
        self._roster.move(node, NodePhase.READY)
        node.offer = offer
        if node.leaving:
            self._let_go(node)
        elif was_stale and self._ending is None:
            self._wait(node, now)

    def _leave(self, node: Node, reason: str) -> None:
        if not node.leaving:
            self._out.note(f"node {node.spec.node_id} leaves: {reason}")
        node.leaving = reason
        if self._adoption is not None:
            self._adoption.leaves(node.spec.node_id, reason, node.spec.host, node.spec.role)
            if self._adoption.alive(node.spec.node_id):
                return  # it confirms when its workers are dead
        if node.phase is NodePhase.RUNNING:
            departure = preempted(node.rank, node.spec.host, node.spec.role, reason)
            self._break(departure.summary(), counted=False, departure=departure)
        elif node.phase in (NodePhase.READY, NodePhase.DONE):
            self._let_go(node)

    def _let_go(self, node: Node) -> None:
        self._out.close(node.link)
        self._forget(node)

    def _lose(self, node: Node, why: str) -> None:
        if self._ending is None:
            self._out.note(f"node {node.spec.node_id} is lost: {why}")
        was_running = node.phase is NodePhase.RUNNING
        was_in_round = was_running or node.phase is NodePhase.STOPPING
        self._forget(node)
        if was_in_round and not node.leaving:
            # Also when the round is being stopped already: the first that was heard of a dead
            # node may have been what its peers said of their lost connections.
            loss = node_lost(node.rank, node.spec.host, node.spec.role, why)
            self._postmortem.remember(loss, node.spec.node_id)
        if was_running and self._ending is None:
            self._break(f"node {node.rank} ({node.spec.host}) was lost: {why}", counted=True)

    def _forget(self, node: Node) -> None:
        if node.rank is not None:
            self._state.former_ranks[node.spec.node_id] = node.rank
        if self._adoption is not None:
            self._adoption.node_removed(node.spec.node_id)
        self._roster.remove(node)

    # --- the end of a round ------------------------------------------------------------------

    def _break(
        self,
        reason: str,
        *,
        counted: bool,
        departure: Failure | None = None,
        lets_settle: bool = False,
    ) -> None:
        """End the round on every member: the lockstep stop."""
        assert self._state.phase is GroupPhase.RUNNING
        self._state.phase = GroupPhase.STOPPING
        self._postmortem.begin(reason, counted=counted, preempted=departure)
        self._ran_s = None if self._formed_at is None else self._state.now - self._formed_at
        self._rescale_at = None
        stop = Stop(self._state.round, reason, lets_settle)  # one for all: it is encoded once
        for node in self._roster.in_phase(NodePhase.RUNNING, NodePhase.DONE):
            self._roster.move(node, NodePhase.STOPPING)
            self._out.send(node, stop)

    def _stop_stale(self, node: Node, round_number: int) -> None:
        node.round = round_number
        self._roster.move(node, NodePhase.STALE)
        self._out.send(node, stale_stop(round_number))

    def _round_is_over(self, now: float) -> None:
        assert self._state.job is not None
        self._postmortem.conclude()
        self._state.phase = GroupPhase.GATHERING
        cause = self._postmortem.cause or self._postmortem.preempted
        suspect = self._state.members.get(cause.node_rank) if cause is not None else None
        self._answer = answer = self._state.aftermath.answer(
            self._state.job,
            self._postmortem,
            restarts=self._state.restarts,
            ran_s=self._ran_s,
            suspect=suspect,
            has_stand_in=suspect is not None and self._has_stand_in(suspect),
            now=now,
        )
        self._lobby.not_before = now + answer.delay_s
        self._lobby.open(self._lobby.not_before)
        if answer.excluded is not None:
            self._out.note(f"node {answer.excluded} is excluded")
        self._expel_excluded()
        if answer.outcome is not None:
            self._finish(answer.outcome, now)
        elif answer.is_counted:
            self._state.restarts += 1
        if answer.delay_s >= _DELAY_TOLD_S:
            for node in self._roster.in_phase(NodePhase.READY):
                self._lobby.add(node)

    def _has_stand_in(self, node_id: str) -> bool:
        """Return whether a world of the same size can be formed without a node, as things stand."""
        assert self._state.job is not None
        job, others = self._state.job, len(self._candidates(without=node_id))
        size = usable_size(others, job.min_nodes, job.max_nodes, job.node_unit)
        return size >= self._state.world_nodes

    # --- excluded nodes ----------------------------------------------------------------------

    def _expel_excluded(self) -> None:
        """Send away the excluded nodes that have no workers of a round that counts."""
        for node_id in self._state.aftermath.ledger.excluded:
            node = self._roster.get(node_id)
            if node is not None and node.phase in (NodePhase.READY, NodePhase.STALE):
                if node.link is not None:
                    self._turn_away(node.link, node_id)
                self._forget(node)
            if node is None or self._roster.get(node_id) is None:
                self._state.former_ranks.pop(node_id, None)  # nobody waits for it

    def _turn_away(self, link: int, node_id: str) -> bool:
        """Tell an excluded node that it is; return whether it is."""
        sentence = self._state.aftermath.ledger.sentence(node_id)
        if sentence is not None:
            self._out.send_on(link, Excluded(sentence))
            self._out.close(link)
        return sentence is not None

    # --- a larger world ----------------------------------------------------------------------

    def _growth(self) -> int:
        """Return how many nodes more than now a world could have."""
        job, members = self._state.job, self._roster.count(NodePhase.RUNNING)
        # Where a node is done, the job is about to end: nothing is begun anew for a newcomer.
        if (
            self._state.phase is not GroupPhase.RUNNING
            or job is None
            or members < self._state.world_nodes
        ):
            return 0
        nodes = members + self._could_join()
        return usable_size(nodes, job.min_nodes, job.max_nodes, job.node_unit) - members

    def _plan_rescale(self, now: float) -> None:
        delay_s = self._state.rescale_delay_s
        if delay_s < math.inf and self._rescale_at is None and self._growth() > 0:
            self._rescale_at = now + delay_s

    def _rescale(self) -> None:
        self._rescale_at = None
        growth = self._growth()
        if growth > 0:
            size = self._state.world_nodes + growth
            self._break(
                f"the world grows from {self._state.world_nodes} to {size} nodes", counted=False
            )

    # --- a new round -------------------------------------------------------------------------

    def _try_form(self, now: float) -> None:
        job = self._state.job
        if job is None or now < self._lobby.not_before:
            return
        ready = self._roster.ready_attached()
        size = usable_size(self._could_join(), job.min_nodes, job.max_nodes, job.node_unit)
        # Known nodes that are detached or still stopping are waited for: nobody who is alive is
        # left out because he was slow.
        settled = ready == len(self._roster)
        if self._state.formed_before:
            complete = settled
        else:
            complete = size == largest_size(job.max_nodes, job.node_unit) or (
                settled and self._lobby.last_call() <= now
            )
        overdue = self._lobby.overdue(now)
        if size and (complete or overdue):
            for node in self._roster.in_phase(NodePhase.STALE):
                self._give_up(node)
            self._form(size, now)
        elif overdue:
            self._finish(Outcome.RENDEZVOUS_FAILED, now)

    def _could_join(self) -> int:
        """Return how many nodes may turn out to be fit for a world now."""
        return self._roster.ready_attached()

    def _candidates(self, without: str = "") -> list[Node]:
        """Return who is fit for the next world, of all or of all but one."""
        ready = self._roster.in_phase(NodePhase.READY)
        return [node for node in ready if node.link is not None and node.spec.node_id != without]

    def _give_up(self, node: Node) -> None:
        self._out.close(node.link)
        self._lose(node, "its workers did not stop in time")

    def _form(self, size: int, now: float) -> None:
        assert self._state.job is not None
        candidates = [
            Candidate(node.spec, node.offer, node.arrival, node.rank) for node in self._candidates()
        ]
        self._state.round = self._state.highest = max(self._state.round, self._state.highest) + 1
        self._state.formed_by = self._state.master_id
        world = form(self._state.round, order(candidates, size))
        self._state.world_nodes = size
        self._state.phase = GroupPhase.RUNNING
        self._state.formed_before = True
        self._state.former_ranks = {}
        self._lobby.close()
        ended, self._postmortem = self._postmortem, Postmortem()
        reason = ended.reason or "all nodes are there"
        self._out.note(
            f"round={self._state.round} formed nodes={size} world_size={world.world_size} "
            f"restarts={self._state.restarts}/{self._state.job.max_restarts} ({reason})"
        )
        self._formed_at, self._rank0_is_done = now, False
        self._start(world, reason, ended.cause)
        self._lobby.forget_newcomers()
        waiting = self._lobby.waiting(now)
        for spare in self._roster.in_phase(NodePhase.READY):
            spare.rank = None
            self._out.send(spare, waiting)

    def _start(self, world: World, reason: str, cause: Failure | None) -> None:
        base = Assignment(
            round=world.round,
            formed_by=self._state.formed_by,
            restarts=self._state.restarts,
            node_rank=0,
            nodes=len(world.members),
            rank_offset=0,
            world_size=world.world_size,
            role_rank_offset=0,
            role_world_size=0,
            successor="",
            master_addr=world.master.address,
            master_port=world.master.port,
            reason=reason,
            cause=cause,
            decision=self._answer.words if cause is not None else "",
            is_free=cause is not None and not self._answer.is_counted,
            restarts_in_window=self._state.restarts_in_budget
            if self._state.policy.restart_window_s
            else 0,
            past=self._past(),
        )
        self._state.members = {member.node_rank: member.node_id for member in world.members}
        for member in world.members:
            node = self._roster.get(member.node_id)
            assert node is not None
            node.assignment = replace(
                base,
                node_rank=member.node_rank,
                rank_offset=member.rank_offset,
                role_rank_offset=member.role_rank_offset,
                role_world_size=member.role_world_size,
                successor=world.successor(member).node_id,
            )
            node.round, node.rank = world.round, member.node_rank
            node.rank_offset = member.rank_offset
            self._roster.move(node, NodePhase.RUNNING)
            self._out.send(node, Start(node.assignment))

    def _past(self) -> Past | None:
        ages = self._state.aftermath.budget.ages_s(self._state.policy, self._state.now)
        ledger, policy = self._state.aftermath.ledger, self._state.policy
        excluded = ledger.excluded
        failures = ledger.failures(
            policy.max_node_failures, policy.restart_window_s, self._state.now
        )
        if not (ages or excluded or failures):
            return None
        return Past(ages, excluded, failures=failures)

    # --- the end of the job ------------------------------------------------------------------

    def _finish(self, outcome: Outcome, now: float, sentence: str = "") -> None:
        """End the job, for a reason in words where it is not that of its last round."""
        assert self._state.job is not None
        sentence = sentence or sentence_of(
            outcome,
            self._postmortem,
            spent=spent(self._state.job, self._state.restarts_in_budget),
            decision=self._answer.words,
            rank0_alone=self._rank0_is_done,
            not_enough=self._lobby.not_enough() if outcome is Outcome.RENDEZVOUS_FAILED else "",
        )
        verdict = verdict_of(
            outcome, sentence, self._state.restarts, self._state.round + 1, self._postmortem
        )
        self._ending = Ending(verdict, now + self._state.settings.verdict_grace_s)
        self._state.phase = GroupPhase.FINISHED
        self._rescale_at = None
        self._lobby.close()
        self._out.note(f"verdict: {verdict.sentence}")
        self._out.add(self._ending.tell(n.link for n in self._roster if n.link is not None))

    # --- waiting nodes ---

    def _wait(self, node: Node, now: float) -> None:
        """A node has become ready: make use of it, and if it still waits then, say for what."""
        self._lobby.add(node)
        self._plan_rescale(now)
