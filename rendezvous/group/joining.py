"""How nodes join: admission, identity contests, reconnection."""

import math
from collections.abc import Callable

from msgspec.structs import replace

from ... import defaults
from ...events.master import (
    NodeJoined,
    NodeReconnected,
    NodeRefused,
    NodeRenamed,
    OptionsReplaced,
    TakeoverBegun,
)
from ..protocol.claim import Claim, ClaimState, Past
from ..protocol.messages import Attend, Challenge, NodeSpec, Refused, Renamed, Start, Stop
from .admission import difference, endpoint_taken, identity_taken, refusal
from .ending import Ending
from .examination import Examiner
from .identity import Contest, Newcomer, next_identity
from .outbox import Outbox
from .phases import Gathering
from .roster import Incarnations, Node, NodePhase
from .rounds import IN_ROUND, Rounds
from .state import JobState
from .takeover import Takeover, is_spare, over
from .waiting import WaitingNodes

_NO_PAST = Past()
_TO_STOP = (NodePhase.STOPPING, NodePhase.STALE)


class Joining:
    """Admits the nodes of a job."""

    def __init__(
        self,
        state: JobState,
        out: Outbox,
        waiting: WaitingNodes,
        rounds: Rounds,
        examiner: Examiner | None,
        gone: Callable[[Node], None],
    ) -> None:
        """``gone`` is called with each removed node; ``Group`` notifies the parts."""
        self._state, self._roster, self._out = state, state.roster, out
        self._waiting, self._rounds = waiting, rounds
        self._examiner = examiner
        self._gone = gone
        self.contest = Contest()
        self._admitted = Incarnations()
        """Processes that have been in this job."""
        self._given = Incarnations()
        """Processes that received a different identity from the proposed one."""
        self._learned = (-1, False)
        """Newest round of which a claim was learned, and whether the claim has its end."""

    def attend(self, link: int, attend: Attend, now: float) -> None:
        """Admit a node on a new stream, refuse it, or let it wait."""
        given = self._given.get(attend.node.incarnation, attend.node.node_id)
        if given != attend.node.node_id:
            attend = self._rename(link, attend, given)  # it has not received its new identity
        self._attend(link, attend, now)

    def _attend(self, link: int, attend: Attend, now: float) -> None:
        if not self._may_attend(link, attend, now):
            return
        spec, ending = attend.node, self._state.phase
        node = self._roster.get(spec.node_id)
        if node is not None and node.spec.incarnation == spec.incarnation:
            self._reattach(node, link, attend, now)
        elif isinstance(ending, Ending):
            self._out.add([ending.tell(link)])
        elif rival := node or self._roster.by_wanted_rank(spec.wanted_rank):
            self.contest.open(link, attend, rival.spec, now)
            if rival.leaving:
                self.rival_leaves(rival)
            elif rival.link is not None:
                self._challenge(rival, now)
        elif (holder := self._holder_of_endpoint(attend)) is not None:
            self._refuse(link, spec, endpoint_taken(holder.spec))
        else:
            self._admit(link, attend, None, now)

    def _holder_of_endpoint(self, attend: Attend) -> Node | None:
        """Return the only node of a job without an ID if a new node is not a part of that job.

        Nodes without an ID have the same job ID. A job of one node needs no second one, so this is
        the first node of a different job with the same endpoint.
        """
        job = attend.job
        if job.job_id != defaults.JOB_ID or job.max_nodes > 1 or not self._is_new(attend):
            return None
        staying = (node for node in self._roster if node.link is not None and not node.leaving)
        return next(staying, None)

    def _may_attend(self, link: int, attend: Attend, now: float) -> bool:
        sentence = self._refusal(attend)
        if sentence is not None and self._is_of_a_running_job(attend):
            self._yield_to(attend, now)
            sentence = None
        has_ended = isinstance(self._state.phase, Ending)
        if has_ended and (sentence is not None or self._is_new(attend)):
            # This node belongs to the next job on the same endpoint, while a node of this job has
            # not yet received the verdict: the stream ends with this master, and the node finds the
            # next one. With the same ID it could also be a late spare, which then waits
            # unsuccessfully: that is better than a job that is reported as succeeded and never ran.
            return False
        if sentence is not None:
            self._refuse(link, attend.node, sentence)
            return False
        if self._state.job is None:
            self._rounds.agree(attend.job)
        must_go = self._rounds.gate.tell_again(link, attend.node)
        return not (must_go or self._rounds.turn_away(link, attend.node.node_id))

    def _is_of_a_running_job(self, attend: Attend) -> bool:
        """Whether a node was in a round of this job, and no connected node was in any.

        Then its options are those of the job, and the connected nodes were started with others,
        e.g. node 0 that was restarted with the master in it.
        """
        is_begun = self._state.formed_before or isinstance(self._state.phase, Takeover | Ending)
        if self._state.job is None or attend.claim is None or is_begun:
            return False
        is_same = attend.job.job_id == self._state.job.job_id
        return is_same and self._refusal_of_first(attend) is None

    def _refusal(self, attend: Attend) -> str | None:
        job = self._state.job
        if job is None:
            return self._refusal_of_first(attend)
        return refusal(attend, job, self._state.settings.succession)

    def _refusal_of_first(self, attend: Attend) -> str | None:
        """Return why a node's options cannot become the job's; None if they can."""
        sentence = refusal(attend, None, self._state.settings.succession)
        checks = attend.job.checks
        if sentence is None and checks is not None and self._examiner is not None:
            try:
                self._examiner(checks, (), ())
            except ValueError as error:
                return f"invalid check options: {error}."
        return sentence

    def _yield_to(self, attend: Attend, now: float) -> None:
        """Reject all connected nodes: the options of a running job's node take precedence."""
        given = self._state.job
        assert given is not None
        self._out.note(OptionsReplaced(attend.node.node_id))
        sentence = (
            f"{difference(given, attend.job)} The job is already running on {attend.node.host}: "
            "use its options, or stop it there first."
        )
        self._rounds.agree(attend.job)
        self._state.phase = Gathering()
        for node in list(self._roster):
            self._refuse(node.link, node.spec, sentence)
            self._gone(node)
        for newcomer in self.contest.dissolve():
            self.attend(newcomer.link, newcomer.attend, now)

    def _is_new(self, attend: Attend) -> bool:
        """Whether neither the node nor this master knows that it was in this job."""
        return attend.claim is None and attend.node.incarnation not in self._admitted

    def _refuse(
        self, link: int | None, node: NodeSpec, sentence: str, *, is_displaced: bool = False
    ) -> None:
        # Two nodes claim the identity of a displaced one: only the address distinguishes them.
        address = f" at {node.address}" if is_displaced or not node.node_id else ""
        which = f"node {node.node_id}" if node.node_id else "a node"
        self._out.note(NodeRefused(which + address, sentence))
        self._out.send_on(link, Refused(sentence, is_displaced))
        self._out.close(link)

    # --- identity ----------------------------------------------------------------------------

    def _challenge(self, rival: Node, now: float) -> None:
        if self.contest.postpone(rival.spec, now + self._state.settings.identity_answer_s):
            self._out.send(rival, Challenge())

    def rival_leaves(self, rival: Node) -> None:
        """Wait for a node that is about to leave, as its workers may still be dying."""
        self.contest.postpone(rival.spec, math.inf)

    def answered(self, node: Node, now: float) -> None:
        """Give new identities to the nodes that claim a responding node's, or refuse them."""
        if node.leaving:
            return
        for newcomer in self.contest.lost(node.spec):
            if self._is_of_another_host(newcomer.attend, node):
                self._give_identity(newcomer, now)
                continue
            sentence = identity_taken(newcomer.attend, node.spec)
            self._refuse(newcomer.link, newcomer.attend.node, sentence, is_displaced=True)

    @staticmethod
    def _is_of_another_host(attend: Attend, holder: Node) -> bool:
        """Whether hosts of equal name propose one identity; a rank cannot be given twice."""
        spec, held = attend.node, holder.spec
        is_same_rank = spec.wanted_rank is not None and spec.wanted_rank == held.wanted_rank
        return spec.node_id == held.node_id and spec.address != held.address and not is_same_rank

    def _give_identity(self, newcomer: Newcomer, now: float) -> None:
        spec = newcomer.attend.node
        given = next_identity(spec.node_id, self._is_taken)
        self._given.add(spec.incarnation, given)
        self._out.note(NodeRenamed(given, spec.host))
        self._attend(newcomer.link, self._rename(newcomer.link, newcomer.attend, given), now)

    def _is_taken(self, node_id: str) -> bool:
        state = self._state
        return (
            self._roster.get(node_id) is not None
            or node_id in state.former_ranks
            or node_id in state.members.values()
            or state.aftermath.ledger.sentence(node_id) is not None
        )

    def _rename(self, link: int, attend: Attend, node_id: str) -> Attend:
        self._out.send_on(link, Renamed(node_id))
        return replace(attend, node=replace(attend.node, node_id=node_id))

    def displace(self, newcomer: Newcomer, now: float) -> None:
        """Give the identity of a node that did not respond to the process that claims it."""
        rival = self._roster.get(newcomer.rival.node_id)
        rank = None
        if rival is not None and rival.spec == newcomer.rival:
            rank = rival.rank
            self._out.close(rival.link)
            self._rounds.lose(rival, "replaced by another process")
        spec = newcomer.attend.node
        if self._roster.get(spec.node_id) or self._roster.by_wanted_rank(spec.wanted_rank):
            # Another newcomer got it at the same time, and is the rival now.
            self.attend(newcomer.link, newcomer.attend, now)
        else:
            self._admit(newcomer.link, newcomer.attend, rank, now)

    # --- the first stream of a node ----------------------------------------------------------

    def _admit(self, link: int, attend: Attend, rank: int | None, now: float) -> None:
        spec, claim = attend.node, attend.claim
        if self._rounds.turn_away(link, spec.node_id):
            return
        node = self._roster.add(spec, attend.offer, link, NodePhase.READY)
        self._admitted.add(spec.incarnation)
        former = self._state.former_ranks.pop(spec.node_id, None)
        node.rank = former if rank is None else rank
        self._rounds.gate.admit(node, claim if self._may_teach(node) else None)
        workers = spec.local_world_size
        joined = NodeJoined(spec.node_id, spec.address, spec.host, workers, spec.role, spec.segment)
        self._out.note(joined)
        if self._waiting.since is None and not self._state.formed_before:
            self._waiting.open(now)
        self._waiting.arrived(now)
        self._learn(node, claim, now)
        if self._roster.get(spec.node_id) is None:
            return  # it reported its own exclusion
        if claim is not None and not self._state.formed_before:
            self._take_claim(node, claim, now)
        elif claim is not None and claim.state is not ClaimState.STOPPED:
            self._rounds.stop_stale(node, claim.round)
        if attend.leaving:
            self._rounds.leave(node, attend.leaving)
        elif node.phase is NodePhase.READY and not isinstance(self._state.phase, Takeover):
            self._rounds.wait(node, now)

    def _may_teach(self, node: Node) -> bool:
        """Whether to trust a node's report on the job.

        A master that has had a round trusts only nodes of its own rounds; before that, it has no
        better information.
        """
        return not self._state.formed_before or node.spec.incarnation in self._state.served

    def _learn(self, node: Node, claim: Claim | None, now: float) -> None:
        """Update the job's state from a claim, so that it never falls behind that of its nodes."""
        if claim is None:
            return
        node.last_round = max(node.last_round, claim.round)
        if not self._may_teach(node):
            return
        past = claim.past or _NO_PAST
        if claim.clear and claim.clear == self._state.settings.quorum_term:
            self._state.starts_from = -math.inf  # nor has any leader in between started a round
        self._state.aftermath.carry(past.carried)
        self._state.highest = max(self._state.highest, claim.round)  # other hosts may have told it
        newest = claim.round, bool(claim.ended)
        if newest > max(self._learned, (self._state.round, True)):
            self._learned = newest
            self._state.aftermath.ledger.learn_failures(past.failures, past.since_s, now)
            if past.progress is not None:
                self._state.aftermath.progress.past = past.progress
        if claim.restarts > self._state.restarts:
            self._state.restarts = claim.restarts
            ages = [age + past.since_s for age in past.restart_ages_s]
            self._state.aftermath.budget.learn(ages, now)
        if past.excluded and self._state.aftermath.ledger.learn(past.excluded):
            self._rounds.expel_excluded()

    def _take_claim(self, node: Node, claim: Claim, now: float) -> None:
        takeover = self._state.phase
        if not isinstance(takeover, Takeover):
            settings = self._state.settings
            takeover = Takeover(self._roster, now, settings.takeover_grace_s, settings.known)
            self._state.phase = takeover
            self._rounds.gate.give_up()
            self._out.note(TakeoverBegun(claim.round))
        own = tuple(node.own(failure, claim) for failure in claim.failures)
        takeover.claim(node.spec.node_id, replace(claim, failures=own))

    # --- the next stream of a node -----------------------------------------------------------

    def _reattach(self, node: Node, link: int, attend: Attend, now: float) -> None:
        self._out.close(node.link)
        self._roster.attach(node, link)
        self._rounds.postmortem.acquit(node.spec.node_id)
        self._roster.set_offer(node, attend.offer)
        if isinstance(ending := self._state.phase, Ending):
            self._out.add([ending.tell(link, node.spec.node_id)])
            return
        self._out.note(NodeReconnected(node.spec.node_id))
        if node.leaving:
            self.rival_leaves(node)
        else:
            self._challenge(node, now)
        claim = attend.claim
        self._learn(node, claim, now)
        if self._roster.get(node.spec.node_id) is None:
            return
        if isinstance(self._state.phase, Takeover):
            if claim is not None:
                self._take_claim(node, claim, now)
        elif node.phase is not NodePhase.READY:
            self._resume(node, attend, now)
        elif claim is not None and claim.state is not ClaimState.STOPPED:
            self._rounds.stop_stale(node, claim.round)
        elif not attend.leaving:
            self._rounds.wait(node, now)
        if attend.leaving and self._roster.get(node.spec.node_id) is node:
            self._rounds.leave(node, attend.leaving)

    def _resume(self, node: Node, attend: Attend, now: float) -> None:
        """Synchronize a reconnected node of a round with its master."""
        claim, was_told = attend.claim, node.phase in _TO_STOP
        if claim is not None and claim.round == node.round and not is_spare(claim):
            if node.phase in IN_ROUND and claim.formed_by != self._state.formed_by:
                self._was_taken(node, claim)
            self._catch_up(node, claim, attend, now)
        elif node.phase is NodePhase.RUNNING and node.assignment is not None:
            # The stream broke before the node received its round.
            self._out.send(node, Start(node.assignment))
        if was_told and node.phase in _TO_STOP:
            # Even to a node that seems not to have received its round: its start may precede this
            # message.
            if node.phase is NodePhase.STALE:
                self._out.send(node, over(node.round, is_stale=True))
                return
            reason = self._rounds.postmortem.reason or f"round {node.round} is over"
            self._out.send(node, Stop(node.round, reason))

    def _was_taken(self, node: Node, claim: Claim) -> None:
        """Handle a node that got a round of this number from another master while disconnected."""
        if node.phase is not NodePhase.STOPPING:
            where = f"node {node.rank} ({node.spec.host})"
            self._rounds.stop_round(
                f"{where} was in round {claim.round} of another master", counted=False
            )

    def _catch_up(self, node: Node, claim: Claim, attend: Attend, now: float) -> None:
        """Process what happened on a node while its stream was broken."""
        if attend.leaving and all(failure.after_stop for failure in claim.failures):
            self._rounds.leave(node, attend.leaving)  # its workers were stopped because it leaves
            if self._roster.get(node.spec.node_id) is not node:
                return
        for failure in claim.failures:
            self._rounds.failed(node, claim.round, failure)
        if claim.state is ClaimState.STOPPED:
            self._rounds.stopped(node, claim.round, attend.offer, None, now)
        elif claim.state is ClaimState.DONE:
            self._rounds.done(node, claim.round)
