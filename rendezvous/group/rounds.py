"""A round's life: formed, running, being stopped, over; and the end of the job. Pure.

This is the lower part of ``group.Group``. It knows who is there and what they report, but not
how they come: that is ``joining``.
"""

import math

from ...values import replace
from ..policy.postmortem import Postmortem
from ..protocol.failure import Evidence, Failure, evidence, node_lost, preempted
from ..protocol.messages import Assignment, ClaimState, Excluded, Outcome, Past, Start, Stop
from ..protocol.offer import Offer
from .ending import Ending, sentence_of, spent, verdict_of
from .events import Close, Send
from .lobby import missing_names
from .roster import Node, NodePhase
from .state import GroupPhase, GroupState
from .world import Candidate, World, form, largest_size, order, usable_size

_DELAY_TOLD_S = 1.0
IN_ROUND = (NodePhase.RUNNING, NodePhase.DONE, NodePhase.STOPPING)


def stale_stop(round_number: int) -> Stop:
    """Return the order to kill the workers of a round that the others have left behind."""
    return Stop(round_number, f"round {round_number} is over", is_stale=True)


class Rounds(GroupState):
    """The rounds of one job, and what its nodes report of them."""

    # --- what nodes report -------------------------------------------------------------------

    def _failed(self, node: Node, round_number: int, failure: Failure) -> None:
        if self._adoption is not None:
            self._adoption.update(node.spec.node_id, round_number, failure=failure)
        elif node.round == round_number == self.round and node.phase in IN_ROUND:
            self._postmortem.remember(failure)
            if self.phase is GroupPhase.RUNNING:
                is_certain = evidence(failure) is Evidence.OWN
                self._break(failure.summary(), counted=True, lets_settle=not is_certain)

    def _done(self, node: Node, round_number: int) -> None:
        if self._adoption is not None:
            self._adoption.update(node.spec.node_id, round_number, state=ClaimState.DONE)
        elif node.round == round_number and node.phase in IN_ROUND:
            # Also when a peer that misses rank 0 has made the round end meanwhile.
            self._rank0_is_done |= self.policy.rank0_decides and node.rank == 0
            if node.phase is NodePhase.RUNNING:
                self.roster.move(node, NodePhase.DONE)

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
        self.roster.move(node, NodePhase.READY)
        node.offer = offer
        if node.leaving:
            self._let_go(node)
        elif was_stale and self._ending is None:
            self._wait(node, now)

    def _leave(self, node: Node, reason: str) -> None:
        if not node.leaving:
            self._note(f"node {node.spec.node_id} leaves: {reason}")
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
        if node.link is not None:
            self._out.append(Close(node.link))
        self._forget(node)

    def _lose(self, node: Node, why: str) -> None:
        if self._ending is None:
            self._note(f"node {node.spec.node_id} is lost: {why}")
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
            self._former_ranks[node.spec.node_id] = node.rank
        if self._adoption is not None:
            self._adoption.node_removed(node.spec.node_id)
        self.roster.remove(node)

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
        assert self.phase is GroupPhase.RUNNING
        self.phase = GroupPhase.STOPPING
        self._postmortem.begin(reason, counted=counted, preempted=departure)
        self._ran_s = None if self._formed_at is None else self._now - self._formed_at
        self._rescale_at = None
        stop = Stop(self.round, reason, lets_settle)  # one for all: it is encoded once
        for node in self.roster.in_phase(NodePhase.RUNNING, NodePhase.DONE):
            self.roster.move(node, NodePhase.STOPPING)
            self._send(node, stop)

    def _stop_stale(self, node: Node, round_number: int) -> None:
        node.round = round_number
        self.roster.move(node, NodePhase.STALE)
        self._send(node, stale_stop(round_number))

    def _round_is_over(self, now: float) -> None:
        assert self.job is not None
        self._postmortem.conclude()
        self.phase = GroupPhase.GATHERING
        cause = self._postmortem.cause or self._postmortem.preempted
        suspect = self._members.get(cause.node_rank) if cause is not None else None
        self._answer = answer = self._aftermath.answer(
            self.job,
            self._postmortem,
            restarts=self.restarts,
            ran_s=self._ran_s,
            suspect=suspect,
            has_stand_in=suspect is not None and self._has_stand_in(suspect),
            now=now,
        )
        self._not_before = now + answer.delay_s
        self._lobby.open(self._not_before)
        if answer.excluded is not None:
            self._note(f"node {answer.excluded} is excluded")
        self._expel_excluded()
        if answer.outcome is not None:
            self._finish(answer.outcome, now)
        elif answer.is_counted:
            self.restarts += 1
        if answer.delay_s >= _DELAY_TOLD_S:
            self._newly_ready += self.roster.in_phase(NodePhase.READY)

    def _has_stand_in(self, node_id: str) -> bool:
        """Return whether a world of the same size can be formed without a node, as things stand."""
        assert self.job is not None
        job, others = self.job, len(self._candidates(without=node_id))
        size = usable_size(others, job.min_nodes, job.max_nodes, job.node_unit)
        return size >= self.world_nodes

    # --- excluded nodes ----------------------------------------------------------------------

    def _expel_excluded(self) -> None:
        """Send away the excluded nodes that have no workers of a round that counts."""
        for node_id in self._aftermath.ledger.excluded:
            node = self.roster.get(node_id)
            if node is not None and node.phase in (NodePhase.READY, NodePhase.STALE):
                if node.link is not None:
                    self._turn_away(node.link, node_id)
                self._forget(node)
            if node is None or self.roster.get(node_id) is None:
                self._former_ranks.pop(node_id, None)  # nobody waits for it

    def _turn_away(self, link: int, node_id: str) -> bool:
        """Tell an excluded node that it is; return whether it is."""
        sentence = self._aftermath.ledger.sentence(node_id)
        if sentence is not None:
            self._out += [Send(link, Excluded(sentence)), Close(link)]
        return sentence is not None

    # --- a larger world ----------------------------------------------------------------------

    def _growth(self) -> int:
        """Return how many nodes more than now a world could have."""
        job, members = self.job, self.roster.count(NodePhase.RUNNING)
        # Where a node is done, the job is about to end: nothing is begun anew for a newcomer.
        if self.phase is not GroupPhase.RUNNING or job is None or members < self.world_nodes:
            return 0
        nodes = members + self._could_join()
        return usable_size(nodes, job.min_nodes, job.max_nodes, job.node_unit) - members

    def _plan_rescale(self, now: float) -> None:
        delay_s = self.rescale_delay_s
        if delay_s < math.inf and self._rescale_at is None and self._growth() > 0:
            self._rescale_at = now + delay_s

    def _rescale(self) -> None:
        self._rescale_at = None
        growth = self._growth()
        if growth > 0:
            size = self.world_nodes + growth
            self._break(f"the world grows from {self.world_nodes} to {size} nodes", counted=False)

    # --- a new round -------------------------------------------------------------------------

    def _try_form(self, now: float) -> None:
        job = self.job
        if job is None or now < self._not_before:
            return
        ready = self.roster.ready_attached()
        size = usable_size(self._could_join(), job.min_nodes, job.max_nodes, job.node_unit)
        # Known nodes that are detached or still stopping are waited for: nobody who is alive is
        # left out because he was slow.
        settled = ready == len(self.roster)
        if self._formed_before:
            complete = settled
        else:
            complete = size == largest_size(job.max_nodes, job.node_unit) or (
                settled and self._lobby.last_call() <= now
            )
        overdue = self._lobby.overdue(now)
        if size and (complete or overdue):
            for node in self.roster.in_phase(NodePhase.STALE):
                self._give_up(node)
            self._form(size, now)
        elif overdue:
            self._finish(Outcome.RENDEZVOUS_FAILED, now)

    def _could_join(self) -> int:
        """Return how many nodes may turn out to be fit for a world now."""
        return self.roster.ready_attached()

    def _candidates(self, without: str = "") -> list[Node]:
        """Return who is fit for the next world, of all or of all but one."""
        ready = self.roster.in_phase(NodePhase.READY)
        return [node for node in ready if node.link is not None and node.spec.node_id != without]

    def _give_up(self, node: Node) -> None:
        if node.link is not None:
            self._out.append(Close(node.link))
        self._lose(node, "its workers did not stop in time")

    def _form(self, size: int, now: float) -> None:
        assert self.job is not None
        candidates = [
            Candidate(node.spec, node.offer, node.arrival, node.rank) for node in self._candidates()
        ]
        self.round = self._highest = max(self.round, self._highest) + 1
        self.formed_by = self._master_id
        world = form(self.round, order(candidates, size))
        self.world_nodes = size
        self.phase = GroupPhase.RUNNING
        self._formed_before = True
        self._former_ranks = {}
        self._lobby.close()
        ended, self._postmortem = self._postmortem, Postmortem()
        reason = ended.reason or "all nodes are there"
        self._note(
            f"round={self.round} formed nodes={size} world_size={world.world_size} "
            f"restarts={self.restarts}/{self.job.max_restarts} ({reason})"
        )
        self._formed_at, self._rank0_is_done = now, False
        self._start(world, reason, ended.cause)
        self._newly_ready = []
        waiting = self._waiting(now)
        for spare in self.roster.in_phase(NodePhase.READY):
            spare.rank = None
            self._send(spare, waiting)

    def _start(self, world: World, reason: str, cause: Failure | None) -> None:
        base = Assignment(
            round=world.round,
            formed_by=self.formed_by,
            restarts=self.restarts,
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
            restarts_in_window=self.restarts_in_budget if self.policy.restart_window_s else 0,
            past=self._past(),
        )
        self._members = {member.node_rank: member.node_id for member in world.members}
        for member in world.members:
            node = self.roster.get(member.node_id)
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
            self.roster.move(node, NodePhase.RUNNING)
            self._send(node, Start(node.assignment))

    def _past(self) -> Past | None:
        ages = self._aftermath.budget.ages_s(self.policy, self._now)
        ledger, policy = self._aftermath.ledger, self.policy
        excluded = ledger.excluded
        failures = ledger.failures(policy.max_node_failures, policy.restart_window_s, self._now)
        if not (ages or excluded or failures):
            return None
        return Past(ages, excluded, failures=failures)

    # --- the end of the job ------------------------------------------------------------------

    def _finish(self, outcome: Outcome, now: float, sentence: str = "") -> None:
        """End the job, for a reason in words where it is not that of its last round."""
        assert self.job is not None
        sentence = sentence or sentence_of(
            outcome,
            self._postmortem,
            spent=spent(self.job, self.restarts_in_budget),
            decision=self._answer.words,
            rank0_alone=self._rank0_is_done,
            not_enough=self._not_enough() if outcome is Outcome.RENDEZVOUS_FAILED else "",
        )
        verdict = verdict_of(outcome, sentence, self.restarts, self.round + 1, self._postmortem)
        self._ending = Ending(verdict, now + self.settings.verdict_grace_s)
        self.phase = GroupPhase.FINISHED
        self._rescale_at = None
        self._lobby.close()
        self._note(f"verdict: {verdict.sentence}")
        self._out += self._ending.tell(n.link for n in self.roster if n.link is not None)

    def _not_enough(self) -> str:
        assert self.job is not None
        missing = ", ".join(missing_names(self.job, self.roster, self._former_ranks))
        return (
            f"{len(self.roster)} of at least {self.job.min_nodes} nodes came within "
            f"{self.settings.join_timeout_s:g} s" + (f"; missing: {missing}" if missing else "")
        )

    # --- waiting nodes ---

    def _wait(self, node: Node, now: float) -> None:
        """A node has become ready: make use of it, and if it still waits then, say for what."""
        self._newly_ready.append(node)
        self._plan_rescale(now)
