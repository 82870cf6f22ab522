"""The life of a round (running, stopping, ended, taken over), and the end of the job.

``joining`` decides how nodes join, ``formation`` when a round is formed and of which nodes.
"""

import math
from collections.abc import Callable

from msgspec.structs import replace

from ...events.master import JobFinished, NodeExcluded, NodeLeaves, NodeLost, RoundTakenOver
from ..policy.decision import RoundDecision
from ..policy.postmortem import Postmortem
from ..protocol.claim import Claim, ClaimState, Progress
from ..protocol.failure import Evidence, Failure, evidence, node_lost, preempted
from ..protocol.messages import Excluded, JobSpec, Outcome, Stop
from ..protocol.offer import Offer, Saving
from .checks import Checks
from .ending import Ending, sentence_of, spent, verdict_of
from .events import Hung
from .outbox import Outbox
from .phases import Gathering, Running, Stopping
from .resumption import Line, savings
from .roster import Node, NodePhase, sizes_of
from .state import JobState
from .takeover import TakenOver, Takeover, TakeoverState, over
from .waiting import WaitingNodes

_DELAY_TOLD_S = 1.0
IN_ROUND = (NodePhase.RUNNING, NodePhase.DONE, NodePhase.STOPPING)


class Rounds:
    """The rounds of one job, and their nodes' reports."""

    def __init__(
        self,
        state: JobState,
        out: Outbox,
        waiting: WaitingNodes,
        checks: Checks,
        gone: Callable[[Node], None],
    ) -> None:
        """``gone`` is called with each removed node; ``Group`` notifies the parts."""
        self._state, self._roster, self._out = state, state.roster, out
        self._waiting, self._gone = waiting, gone
        self.gate = checks
        self.postmortem = Postmortem()
        self.answer = RoundDecision()
        """Decision at the end of the last round."""
        self.reason_before = ""
        """Why the round before the current one ended, as text."""

    def agree(self, job: JobSpec | None) -> None:
        """Set the options of the job; None if it has no node left."""
        self.gate.reset()
        self._state.job = job

    def begin(self, now: float) -> Postmortem:
        """Start a round; return the postmortem of the previous one."""
        ended, self.postmortem = self.postmortem, Postmortem()
        self.reason_before = ended.reason
        self._state.phase = Running(formed_at=now)
        return ended

    # --- reports of nodes --------------------------------------------------------------------

    def failed(self, node: Node, round_number: int, failure: Failure) -> None:
        """Process the failure of a worker."""
        if node.round == round_number == self._state.round and node.phase in IN_ROUND:
            failure = node.own(failure)
            self.postmortem.remember(failure)
            if isinstance(self._state.phase, Running):
                is_certain = evidence(failure) is Evidence.OWN
                self.stop_round(failure.summary(), counted=True, lets_settle=not is_certain)

    def hung(self, event: Hung) -> None:
        """Process a hang of the round's workers."""
        if event.round == self._state.round and isinstance(self._state.phase, Running):
            self.postmortem.remember(event.failure)
            self.stop_round(event.failure.summary(), counted=True, hung=event)

    def done(self, node: Node, round_number: int) -> None:
        """Record that all workers of a node, or rank 0 if it decides, have succeeded."""
        phase = self._state.phase
        is_in_round = node.round == round_number and node.phase in IN_ROUND
        if is_in_round and isinstance(phase, Running | Stopping):
            # Even if a peer that lost its connection to rank 0 has ended the round in the meantime.
            phase.rank0_is_done |= self._state.policy.rank0_decides and node.rank == 0
            if node.phase is NodePhase.RUNNING:
                self._roster.move(node, NodePhase.DONE)

    def stopped(
        self, node: Node, round_number: int, offer: Offer, progress: Progress | None, now: float
    ) -> None:
        """Record that no worker of the round is alive on a node."""
        if node.round != round_number or node.phase is NodePhase.READY:
            return
        was_stale = node.phase is NodePhase.STALE
        if progress is not None and not was_stale:
            self.postmortem.progress[node.spec.node_id] = progress
        if node.phase in (NodePhase.RUNNING, NodePhase.DONE):
            # If several hosts can lead, the fence may have been killing them as the node connected.
            was_fenced = self._state.settings.term > 0
            why = " while there was no leader" if was_fenced else ""
            where = f"node {node.rank} ({node.spec.host})"
            self.stop_round(f"{where} stopped its workers{why}", counted=not was_fenced)
        self._roster.move(node, NodePhase.READY)
        node.offer = offer
        if node.leaving:
            self.let_go(node)
        elif was_stale:
            self.wait(node, now)

    def leave(self, node: Node, reason: str) -> None:
        """Process a request to leave: the node can leave as soon as its workers are dead."""
        if not node.leaving:
            self._out.note(NodeLeaves(node.spec.node_id, reason))
        node.leaving = reason
        if isinstance(self._state.phase, Takeover) and self._state.phase.leaves(node, reason):
            return  # it confirms when its workers are dead
        if node.phase is NodePhase.RUNNING:
            departure = preempted(node.rank, node.spec.host, node.spec.role, reason)
            self.stop_round(departure.summary(), counted=False, departure=departure)
        elif node.phase in (NodePhase.READY, NodePhase.DONE):
            self.let_go(node)

    def let_go(self, node: Node) -> None:
        """End the stream of a node and forget it."""
        self._out.close(node.link)
        self._gone(node)

    def lose(self, node: Node, why: str) -> None:
        """Remove a node that is lost or replaced: its workers count as dead."""
        has_ended = isinstance(self._state.phase, Ending)
        if not has_ended:
            self._out.note(NodeLost(node.spec.node_id, why))
        was_running = node.phase is NodePhase.RUNNING
        was_in_round = was_running or node.phase is NodePhase.STOPPING
        self._gone(node)
        if was_in_round and not node.leaving:
            # Even if the round is already being stopped: the first report after the loss of a node
            # may have been a connection error of its peers.
            loss = node_lost(node.rank, node.spec.host, node.spec.role, why)
            self.postmortem.remember(loss, node.spec.node_id)
        self.gate.lost(node.spec.node_id)
        if was_running and not has_ended:
            self.stop_round(f"node {node.rank} ({node.spec.host}) was lost: {why}", counted=True)

    # --- the end of a round ------------------------------------------------------------------

    def stop_round(
        self,
        reason: str,
        *,
        counted: bool,
        departure: Failure | None = None,
        lets_settle: bool = False,
        hung: Hung | None = None,
    ) -> None:
        """Stop the round on all members in lockstep."""
        running = self._state.phase
        assert isinstance(running, Running)
        ran_s = None if running.formed_at is None else self._state.now - running.formed_at
        self._state.phase = Stopping(ran_s, running.rank0_is_done)
        self._state.newest = self._state.settings.term, self._state.round + 1
        self.postmortem.begin(reason, counted=counted, preempted=departure)
        stop = Stop(self._state.round, reason, lets_settle)  # one for all nodes: encoded once
        if hung is not None:
            stop = replace(stop, is_hung=not hung.is_alone, stacks=hung.stacks)
        for node in self._roster.in_phase(NodePhase.RUNNING, NodePhase.DONE):
            self._roster.move(node, NodePhase.STOPPING)
            self._out.send(node, stop)

    def stop_stale(self, node: Node, round_number: int) -> None:
        """Order a node to kill the workers of an outdated round."""
        node.round = round_number
        self._roster.move(node, NodePhase.STALE)
        self._out.send(node, over(round_number, is_stale=True))

    def end_round(self, stopping: Stopping, now: float) -> None:
        """Decide the next action, after all workers of the round are dead."""
        assert self._state.job is not None
        self.postmortem.conclude()
        self._state.phase = Gathering()
        cause = self.postmortem.cause or self.postmortem.preempted
        suspect = self._state.members.get(cause.node_rank) if cause is not None else None
        self.answer = answer = self._state.aftermath.answer(
            self._state.job,
            self.postmortem,
            restarts=self._state.restarts,
            ran_s=stopping.ran_s,
            suspect=suspect,
            has_stand_in=suspect is not None and self._has_stand_in(suspect),
            nodes=self._state.world_nodes,
            now=now,
        )
        self._waiting.not_before = now + answer.delay_s
        self._waiting.open(self._waiting.not_before)
        if answer.excluded is not None:
            self._out.note(NodeExcluded(answer.excluded))
        self.expel_excluded()
        if answer.outcome is not None:
            self.finish(answer.outcome, now)
        elif answer.is_counted:
            self._state.restarts += 1
        if answer.delay_s >= _DELAY_TOLD_S:
            for node in self._roster.in_phase(NodePhase.READY):
                self._waiting.add(node)
        self.gate.round_ended(self.postmortem)

    def _has_stand_in(self, node_id: str) -> bool:
        others = [node for node in self._roster.ready_nodes() if node.spec.node_id != node_id]
        return self._state.usable(sizes_of(self.gate.fit(others))) >= self._state.world_nodes

    # --- takeover from an earlier master -----------------------------------------------------

    def take_over(self, taken: TakenOver, now: float) -> None:
        """Continue the round of an earlier master."""
        state, world = self._state, taken.world
        rank0_is_done = state.policy.rank0_decides and world.rank0_is_done
        running = Running(None, rank0_is_done=rank0_is_done)
        state.formed_before, state.phase = True, running
        state.round, state.formed_by = taken.round, world.formed_by
        state.term = min(taken.term, state.settings.term)  # a node could report any higher term
        state.newest = state.term, state.round
        if taken.finding is TakeoverState.COMPLETE:
            state.starts_from = -math.inf  # its workers are the only ones
        state.world_nodes = len(world.members) + world.missing
        # Include members that are not connected: the policy may require a replacement for one.
        members = {claim.node_rank: name for name, claim in world.members.items()}
        absent = world.absent()
        state.members = absent | members
        known = ((rank, self._roster.get(name)) for rank, name in state.members.items())
        state.place({rank: node.spec.segment for rank, node in known if node is not None})
        self._keep_ranks(absent)
        self._waiting.close()
        self._out.note(
            RoundTakenOver(
                state.round, len(members), state.world_nodes, state.restarts, taken.finding.value
            )
        )
        for name, claim in taken.claims.items():
            node = self._roster.get(name)
            if name in world.members:
                is_decided = taken.finding is TakeoverState.ENDED
                self._resume(node, replace(claim, failures=()) if is_decided else claim)
            elif node is not None and claim.state is not ClaimState.STOPPED:
                self.stop_stale(node, claim.round)
        self._judge(taken, running)
        for node in self._roster.in_phase(NodePhase.READY):
            self.wait(node, now)

    def _keep_ranks(self, absent: dict[int, str]) -> None:
        for rank, name in absent.items():
            node = self._roster.get(name)
            if node is not None:
                node.rank = rank
            else:
                self._state.former_ranks[name] = rank

    def _resume(self, node: Node | None, claim: Claim) -> None:
        """Set a member's state from its claim; if it has left (None), only its failures count."""
        for failure in claim.failures:
            self.postmortem.remember(failure)
        if node is None:
            return
        self._state.served.add(node.spec.incarnation)
        node.round = claim.round
        node.rank, node.rank_offset = claim.node_rank, claim.rank_offset
        if claim.state is not ClaimState.STOPPED:
            self._roster.move(node, NodePhase.RUNNING)
        if claim.state is ClaimState.DONE:
            self._roster.move(node, NodePhase.DONE)

    def _judge(self, taken: TakenOver, running: Running) -> None:
        if running.rank0_is_done:
            pass  # the job has succeeded, regardless of the other ranks
        elif taken.finding is TakeoverState.FAILED:
            if taken.lost is not None:
                # The time is unknown: it only precedes failures that can be its consequence.
                self.postmortem.remember(taken.lost)
            foremost = self.postmortem.foremost
            assert foremost is not None
            self.stop_round(foremost.summary(), counted=True)
        elif taken.finding is not TakeoverState.COMPLETE:
            self.stop_round(taken.reason, counted=False, departure=taken.departure)
        else:
            leavers = [node for node in self._roster.in_phase(NodePhase.RUNNING) if node.leaving]
            for node in leavers[:1]:
                self.leave(node, node.leaving)
        for node in self._roster.in_phase(NodePhase.READY, NodePhase.DONE):
            if node.leaving:
                self.let_go(node)

    # --- excluded nodes ----------------------------------------------------------------------

    def expel_excluded(self) -> None:
        """Remove the excluded nodes that have no workers of a current round."""
        for node_id in self._state.aftermath.ledger.excluded:
            node = self._roster.get(node_id)
            if node is not None and node.phase in (NodePhase.READY, NodePhase.STALE):
                self.turn_away(node.link, node_id)
                self._gone(node)
            if node is None or self._roster.get(node_id) is None:
                self._state.former_ranks.pop(node_id, None)  # not waited for

    def turn_away(self, link: int | None, node_id: str) -> bool:
        """Send an excluded node its exclusion; return whether it is excluded."""
        sentence = self._state.aftermath.ledger.sentence(node_id)
        if sentence is not None:
            self._out.send_on(link, Excluded(sentence))
            self._out.close(link)
        return sentence is not None

    # --- a larger world ----------------------------------------------------------------------

    def growth(self) -> int:
        """Return by how many nodes a world could grow."""
        state, members = self._state, self._roster.count(NodePhase.RUNNING)
        # If a node is done, the job is about to end: no restart for a new node.
        if not isinstance(state.phase, Running) or state.job is None or members < state.world_nodes:
            return 0
        if state.phase.is_fixed:
            return 0
        return state.usable(state.sizes + self.gate.may_join(loaded_only=True)) - members

    def plan_rescale(self, now: float) -> None:
        """Schedule the end of the round for a larger one, if there are enough nodes."""
        delay_s, running = self._state.rescale_delay_s, self._state.phase
        if isinstance(running, Running) and self.growth() > 0 and not running.is_growing:
            running.rescale_at = now + delay_s

    def loaded(self, node: Node, offer: Offer, now: float) -> None:
        """Plan a larger world with a node that was still importing modules when it connected."""
        if node.phase is NodePhase.READY:
            self._roster.set_offer(node, offer)
            self.plan_rescale(now)

    def growth_reason(self) -> str:
        """Return why a round is stopped for a larger one."""
        nodes = self._state.world_nodes
        return f"scaling up from {nodes} to {nodes + self.growth()} nodes"

    # --- the end of the job ------------------------------------------------------------------

    def finish(
        self, outcome: Outcome, now: float, sentence: str = "", *, rank0_alone: bool = False
    ) -> None:
        """End the job; ``sentence`` is the reason if it is not that of the last round."""
        assert self._state.job is not None
        sentence = sentence or sentence_of(
            outcome,
            self.postmortem,
            spent=spent(self._state.job, self._state.restarts_in_budget),
            decision=self.answer.words,
            rank0_alone=rank0_alone,
        )
        verdict = verdict_of(
            outcome, sentence, self._state.restarts, self._state.round + 1, self.postmortem
        )
        self._state.phase = ending = Ending(
            verdict,
            now + self._state.settings.verdict_grace_s,
            self._savings() if outcome is not Outcome.SUCCEEDED else {},
        )
        self._waiting.close()
        self._out.note(JobFinished(verdict.sentence))
        there = [(node.link, node) for node in self._roster if node.link is not None]
        self._out.add([ending.tell(link, node.spec.node_id) for link, node in there])

    def _savings(self) -> dict[str, Saving]:
        line = Line(self._state.round, self._state.formed_by)
        return savings(self._roster.ready_nodes(), line)

    # --- waiting nodes -----------------------------------------------------------------------

    def wait(self, node: Node, now: float) -> None:
        """Use a node that has become ready; if it keeps waiting, send it ``Waiting``."""
        self._waiting.add(node)
        self.plan_rescale(now)
        self.gate.repeat_order(node)
