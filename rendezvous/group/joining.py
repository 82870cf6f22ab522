"""How nodes come: admission, identity contests, reconnection. Pure.

This is the middle part of ``group.Group``.
"""

import math

from ..protocol.messages import Attend, Challenge, Claim, ClaimState, Past, Refused, Start, Stop
from .admission import difference, identity_taken, refusal
from .checking import Checking, Examiner
from .identity import Contest, Newcomer
from .outbox import Outbox
from .roster import Node, NodePhase
from .rounds import IN_ROUND, stale_stop
from .state import GroupPhase, JobState
from .takeover import Adoption, is_spare

_NO_PAST = Past()
_TO_STOP = (NodePhase.STOPPING, NodePhase.STALE)


class Joining(Checking):
    """Takes in the nodes of a job."""

    def __init__(self, state: JobState, out: Outbox, examiner: Examiner | None) -> None:
        super().__init__(state, out, examiner)
        self._contest = Contest()
        self._admitted: set[str] = set()
        """By incarnation, all that have been in this job."""

    def _attend(self, link: int, attend: Attend, now: float) -> None:
        sentence = (
            refusal(attend, self._state.job) if self._state.job else self._refusal_of_first(attend)
        )
        if sentence is not None and self._is_of_a_running_job(attend):
            self._yield_to(attend, now)
            sentence = None
        if self._ending is not None and (sentence is not None or self._is_new(attend)):
            # For the job after this one, on the same endpoint, while a node of this one is slow to
            # hear of its end: the stream ends with this master, and the node finds the next one.
            # With the same id it cannot be told from a late spare, which then waits in vain: that
            # is better than a job that is said to have succeeded and was never run.
            return
        if sentence is not None:
            self._refuse(link, attend.node.node_id, sentence)
            return
        self._state.job = self._state.job or attend.job
        if self._tell_again(link, attend.node) or self._turn_away(link, attend.node.node_id):
            return
        node = self._roster.get(attend.node.node_id)
        if node is not None and node.spec.incarnation == attend.node.incarnation:
            self._reattach(node, link, attend, now)
            return
        if self._ending is not None:
            self._out.add(self._ending.tell([link]))
            return
        rival = node or self._roster.by_wanted_rank(attend.node.wanted_rank)
        if rival is None:
            self._admit(link, attend, None, now)
            return
        self._contest.open(link, attend, rival.spec, now)
        if rival.leaving:
            self._rival_leaves(rival)
        elif rival.link is not None:
            self._challenge(rival, now)

    def _is_of_a_running_job(self, attend: Attend) -> bool:
        """Whether a node was in a round of this job, and nobody who is here was in any.

        Then its options are the job's: those who are here were started with others, such as node
        0 that came back with a new master in it.
        """
        is_begun = (
            self._adoption is not None or self._state.formed_before or self._ending is not None
        )
        if self._state.job is None or attend.claim is None or is_begun:
            return False
        is_same = attend.job.job_id == self._state.job.job_id
        return is_same and self._refusal_of_first(attend) is None

    def _refusal_of_first(self, attend: Attend) -> str | None:
        """Return why the options of a node may not become those of the job; None where they may."""
        sentence, checks = refusal(attend, None), attend.job.checks
        if sentence is None and checks is not None and self.examiner is not None:
            try:
                self.examiner(checks, (), ())
            except ValueError as error:
                return f"the options of the checks make no sense: {error}."
        return sentence

    def _yield_to(self, attend: Attend, now: float) -> None:
        """Refuse all who are here: a node that was in a round of the job has other options."""
        assert self._state.job is not None
        where = attend.node.host
        self._out.note(f"node {attend.node.node_id} comes from this job: its options hold")
        sentence = (
            f"{difference(self._state.job, attend.job)} The job runs already, on {where}: use its "
            "options, or end it there first."
        )
        self._state.job, self._state.phase = attend.job, GroupPhase.GATHERING
        self._give_up_checks()
        self._forget_findings()
        for node in list(self._roster):
            self._refuse(node.link, node.spec.node_id, sentence)
            self._forget(node)
        for newcomer in self._contest.dissolve():
            self._attend(newcomer.link, newcomer.attend, now)

    def _is_new(self, attend: Attend) -> bool:
        """Whether neither the node nor this master knows of it ever having been in this job."""
        return attend.claim is None and attend.node.incarnation not in self._admitted

    def _refuse(
        self, link: int | None, node_id: str, sentence: str, *, is_displaced: bool = False
    ) -> None:
        self._out.note(f"node {node_id} was refused: {sentence}")
        self._out.send_on(link, Refused(sentence, is_displaced))
        self._out.close(link)

    # --- identity ----------------------------------------------------------------------------

    def _challenge(self, rival: Node, now: float) -> None:
        """Ask the holder of an identity to answer those who claim it, if there are any."""
        if self._contest.postpone(rival.spec, now + self._state.settings.identity_answer_s):
            self._out.send(rival, Challenge())

    def _rival_leaves(self, rival: Node) -> None:
        """A node that is about to go is waited for: its workers may still be dying."""
        self._contest.postpone(rival.spec, math.inf)

    def _forget(self, node: Node) -> None:
        super()._forget(node)
        self._contest.postpone(node.spec, -math.inf)

    def _answered(self, node: Node) -> None:
        """The holder of an identity is there: who else claimed it is refused."""
        if node.leaving:
            return
        for newcomer in self._contest.lost(node.spec):
            sentence = identity_taken(newcomer.attend)
            self._refuse(newcomer.link, newcomer.attend.node.node_id, sentence, is_displaced=True)

    def _displace(self, newcomer: Newcomer, now: float) -> None:
        """Give the identity of a node that did not answer to the process that claims it."""
        rival = self._roster.get(newcomer.rival.node_id)
        rank = None
        if rival is not None and rival.spec == newcomer.rival:
            rank = rival.rank
            self._out.close(rival.link)
            self._lose(rival, "another process took its place")
        spec = newcomer.attend.node
        if self._roster.get(spec.node_id) or self._roster.by_wanted_rank(spec.wanted_rank):
            # Another newcomer was given it at the same moment: now that one is the rival.
            self._attend(newcomer.link, newcomer.attend, now)
        else:
            self._admit(newcomer.link, newcomer.attend, rank, now)

    # --- the first stream of a node ----------------------------------------------------------

    def _admit(self, link: int, attend: Attend, rank: int | None, now: float) -> None:
        spec, claim = attend.node, attend.claim
        if self._turn_away(link, spec.node_id):
            return
        node = self._roster.add(spec, attend.offer, link, NodePhase.READY)
        self._admitted.add(spec.incarnation)
        former = self._state.former_ranks.pop(spec.node_id, None)
        node.rank = former if rank is None else rank
        node.passed = self._has_passed(spec.node_id, claim)
        node.has_met = node.passed and claim is not None and claim.nodes != 1
        self._out.note(f"node {spec.node_id} joined from {spec.address}")
        if self._lobby.since is None and not self._state.formed_before:
            self._lobby.open(now)
        self._lobby.arrived(now)
        self._learn(claim, now)
        if self._roster.get(spec.node_id) is None:
            return  # it brought the news of its own exclusion
        if claim is not None and not self._state.formed_before:
            self._take_claim(node, claim, now)
        elif claim is not None and claim.state is not ClaimState.STOPPED:
            self._stop_stale(node, claim.round)
        if attend.leaving:
            self._leave(node, attend.leaving)
        elif node.phase is NodePhase.READY and self._state.phase is not GroupPhase.ADOPTING:
            self._wait(node, now)

    def _learn(self, claim: Claim | None, now: float) -> None:
        """Never fall behind what any node has seen, whichever master it was."""
        if claim is None:
            return
        past = claim.past or _NO_PAST
        if claim.round > self._state.highest:
            self._state.highest = claim.round
            self._state.aftermath.ledger.learn_failures(past.failures, past.since_s, now)
        if claim.restarts > self._state.restarts:
            self._state.restarts = claim.restarts
            ages = [age + past.since_s for age in past.restart_ages_s]
            self._state.aftermath.budget.learn(ages, now)
        if past.excluded and self._state.aftermath.ledger.learn(past.excluded):
            self._expel_excluded()

    def _take_claim(self, node: Node, claim: Claim, now: float) -> None:
        if self._adoption is None:
            self._adoption = Adoption(now + self._state.settings.adoption_grace_s)
            self._state.phase = GroupPhase.ADOPTING
            self._give_up_checks()
            self._out.note(f"round={claim.round} was formed by an earlier master; taking it over")
        self._adoption.claim(node.spec.node_id, claim)

    # --- the next stream of a node -----------------------------------------------------------

    def _reattach(self, node: Node, link: int, attend: Attend, now: float) -> None:
        self._out.close(node.link)
        self._roster.attach(node, link)
        self._postmortem.acquit(node.spec.node_id)
        node.offer = attend.offer
        if self._ending is not None:
            self._out.add(self._ending.tell([link]))
            return
        self._out.note(f"node {node.spec.node_id} is connected again")
        if node.leaving:
            self._rival_leaves(node)
        else:
            self._challenge(node, now)
        claim = attend.claim
        self._learn(claim, now)
        if self._roster.get(node.spec.node_id) is None:
            return
        if self._adoption is not None:
            if claim is not None:
                self._take_claim(node, claim, now)
        elif node.phase is not NodePhase.READY:
            self._resume(node, attend, now)
        elif claim is not None and claim.state is not ClaimState.STOPPED:
            self._stop_stale(node, claim.round)
        elif not attend.leaving:
            self._wait(node, now)
        if attend.leaving and self._roster.get(node.spec.node_id) is node:
            self._leave(node, attend.leaving)

    def _resume(self, node: Node, attend: Attend, now: float) -> None:
        """Bring a node of a round and its master to the same knowledge again."""
        claim, was_told = attend.claim, node.phase in _TO_STOP
        if claim is not None and claim.round == node.round and not is_spare(claim):
            if node.phase in IN_ROUND and claim.formed_by != self._state.formed_by:
                self._was_taken(node, claim)
            self._catch_up(node, claim, attend, now)
        elif node.phase is NodePhase.RUNNING and node.assignment is not None:
            # The stream broke before it heard of its round.
            self._out.send(node, Start(node.assignment))
        if was_told and node.phase in _TO_STOP:
            # Also to one that seems not to have heard of its round: the start may lie before it.
            if node.phase is NodePhase.STALE:
                self._out.send(node, stale_stop(node.round))
                return
            reason = self._postmortem.reason or f"round {node.round} is over"
            self._out.send(node, Stop(node.round, reason))

    def _was_taken(self, node: Node, claim: Claim) -> None:
        """While its stream was broken a node got a round of this number from another master."""
        if node.phase is not NodePhase.STOPPING:
            where = f"node {node.rank} ({node.spec.host})"
            self._break(f"{where} was in round {claim.round} of another master", counted=False)

    def _catch_up(self, node: Node, claim: Claim, attend: Attend, now: float) -> None:
        """Take in what happened on a node while its stream was broken."""
        if attend.leaving and all(failure.after_stop for failure in claim.failures):
            self._leave(node, attend.leaving)  # its workers were stopped because of that
            if self._roster.get(node.spec.node_id) is not node:
                return
        for failure in claim.failures:
            self._failed(node, claim.round, failure)
        if claim.state is ClaimState.STOPPED:
            self._stopped(node, claim.round, attend.offer, now)
        elif claim.state is ClaimState.DONE:
            self._done(node, claim.round)
