"""The group's rules: one state machine without I/O, clock, logging or asyncio.

``handle(event, now) -> commands`` is the whole interface; ``deadline()`` says when it next wants
a ``Tick``. The master around it moves messages and time (``master``); the simulation in the
tests drives it through random histories against the invariants I1 to I7 of
docs/architecture.md.
"""

import enum
from dataclasses import replace

from .. import defaults, exit_codes
from .admission import identity_taken, refusal
from .adoption import Adoption, Finding
from .contest import Contest, Newcomer
from .events import Close, Command, Detached, Event, Finish, GroupSettings, Note, Received, Send
from .failure import Failure, FailureKind, node_lost, root_cause
from .lobby import Lobby, missing_names
from .messages import (
    Answer,
    Attend,
    Challenge,
    Claim,
    ClaimState,
    Done,
    Failed,
    Heard,
    JobSpec,
    Leave,
    MasterMessage,
    NodeMessage,
    Offer,
    Outcome,
    Place,
    Refused,
    Start,
    Stop,
    Stopped,
    Verdict,
    Waiting,
)
from .roster import Node, NodePhase, Roster
from .world import Candidate, World, form, order, usable_size

_FAILURES_KEPT = 256
"""Failures of one round that are kept to find the root cause among them."""


class GroupPhase(enum.Enum):
    """What the group as a whole is doing."""

    GATHERING = "waiting for nodes"
    ADOPTING = "taking over a running round"
    RUNNING = "running"
    STOPPING = "stopping a round"
    FINISHED = "finished"


class Group:
    """The worker group of one job. See the module's text."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.job: JobSpec | None = None
        self.roster = Roster()
        self.phase = GroupPhase.GATHERING
        self.round = -1
        self.restarts = 0
        self.world_nodes = 0
        """Nodes in the world of ``round``."""
        self.verdict: Verdict | None = None
        self._out: list[Command] = []
        self._lobby = Lobby(self.settings)
        self._contest = Contest()
        self._adoption: Adoption | None = None
        self._formed_before = False
        self._former_ranks: dict[str, int] = {}
        self._failures: dict[tuple[FailureKind, int, int], Failure] = {}
        self._failure_count = 0
        self._counted = False
        self._reason = ""
        self._cause: Failure | None = None
        self._rescale_at: float | None = None
        self._unheard: set[int] = set()
        self._verdict_until = 0.0
        self._ended = False

    # --- the interface -----------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event and return what is to be done, in order.

        Args:
            event: what happened.
            now: seconds of any clock that never goes back.
        """
        if isinstance(event, Received):
            self._received(event.link, event.message, now)
        elif isinstance(event, Detached):
            self._link_gone(event.link, now)
        self._timers(now)
        self._advance(now)
        commands, self._out = self._out, []
        return commands

    def deadline(self) -> float | None:
        """Return when the next ``Tick`` is wanted; None for never."""
        if self._ended:
            return None
        times = [self.roster.next_loss(), self._contest.deadline(), self._rescale_at]
        if self.phase is GroupPhase.FINISHED:
            times.append(self._verdict_until)
        elif self.phase is GroupPhase.GATHERING and self.job is not None:
            times += [self._lobby.join_deadline(), self._lobby.announce_at]
            if not self._formed_before and len(self.roster) >= self.job.min_nodes:
                times.append(self._lobby.last_call())
        elif self._adoption is not None:
            times.append(self._adoption.until)
        return min((time for time in times if time is not None), default=None)

    # --- events ------------------------------------------------------------------------------

    def _received(self, link: int, message: NodeMessage, now: float) -> None:
        if isinstance(message, Attend):
            self._attend(link, message, now)
            return
        if isinstance(message, Heard):
            self._unheard.discard(link)
            return
        node = self.roster.by_link(link)
        if node is None:
            return  # a stream that was replaced or refused
        match message:
            case Failed(round_number, failure):
                self._failed(node, round_number, failure)
            case Done(round_number):
                self._done(node, round_number)
            case Stopped(round_number, offer):
                self._stopped(node, round_number, offer)
            case Leave(reason):
                self._leave(node, reason)
            case Answer():
                for newcomer in self._contest.lost(node.spec.node_id):
                    self._refuse(newcomer.link, newcomer.attend, identity_taken(newcomer.attend))

    def _link_gone(self, link: int, now: float) -> None:
        self._unheard.discard(link)
        self._contest.withdraw(link)
        node = self.roster.by_link(link)
        if node is None:
            return
        self.roster.detach(node, now + self.settings.node_grace_s)
        self._contest.rival_gone(node.spec.node_id, now)
        if self.phase is not GroupPhase.FINISHED:
            self._note(f"node {node.spec.node_id} lost its connection")

    def _timers(self, now: float) -> None:
        for node in self.roster.overdue(now):
            self._lose(node, f"its connection was gone for {self.settings.node_grace_s:g} s")
        for newcomer in self._contest.won(now):
            self._displace(newcomer, now)
        if self._rescale_at is not None and self._rescale_at <= now:
            self._rescale()
        announce_at = self._lobby.announce_at
        if announce_at is not None and announce_at <= now:
            self._lobby.announced(now)
            waiting = self._waiting(now)
            for node in self.roster.in_phase(NodePhase.READY):
                self._send(node, waiting)

    # --- joining -----------------------------------------------------------------------------

    def _attend(self, link: int, attend: Attend, now: float) -> None:
        sentence = refusal(attend, self.job)
        if sentence is not None:
            self._refuse(link, attend, sentence)
            return
        self.job = self.job or attend.job
        node = self.roster.get(attend.node.node_id)
        if node is not None and node.spec.incarnation == attend.node.incarnation:
            self._reattach(node, link, attend, now)
            return
        if self.phase is GroupPhase.FINISHED:
            self._tell_verdict(link)
            return
        rival = node or self.roster.by_wanted_rank(attend.node.wanted_rank)
        if rival is None:
            self._admit(link, attend, None, now)
            return
        if rival.link is not None:
            self._send(rival, Challenge())
            deadline = now + self.settings.identity_answer_s
        else:
            deadline = now
        self._contest.open(link, attend, rival.spec.node_id, deadline)

    def _refuse(self, link: int, attend: Attend, sentence: str) -> None:
        self._note(f"node {attend.node.node_id} was refused: {sentence}")
        self._out += [Send(link, Refused(sentence)), Close(link)]

    def _displace(self, newcomer: Newcomer, now: float) -> None:
        """Give the identity of a node that did not answer to the process that claims it."""
        rival = self.roster.get(newcomer.rival_id)
        rank = None
        if rival is not None:
            rank = rival.rank
            if rival.link is not None:
                self._out.append(Close(rival.link))
            self._lose(rival, "another process took its place")
        spec = newcomer.attend.node
        if self.roster.get(spec.node_id) or self.roster.by_wanted_rank(spec.wanted_rank):
            # Another newcomer was given it at the same moment: now that one is the rival.
            self._attend(newcomer.link, newcomer.attend, now)
        else:
            self._admit(newcomer.link, newcomer.attend, rank, now)

    def _admit(self, link: int, attend: Attend, rank: int | None, now: float) -> None:
        spec, claim = attend.node, attend.claim
        node = self.roster.add(spec, attend.offer, link, NodePhase.READY)
        node.rank = self._former_ranks.get(spec.node_id) if rank is None else rank
        self._note(f"node {spec.node_id} joined from {spec.address}")
        if self._lobby.since is None and not self._formed_before:
            self._lobby.open(now)
        self._lobby.arrived(len(self.roster), now)
        if claim is not None and not self._formed_before:
            self._take_claim(node, claim, now)
        elif claim is not None and claim.state is not ClaimState.STOPPED:
            self._stop_stale(node, claim.round)
        else:
            self._plan_rescale(now)
        if node.phase is NodePhase.READY and self.phase is not GroupPhase.ADOPTING:
            self._send(node, self._waiting(now))

    def _stop_stale(self, node: Node, round_number: int) -> None:
        node.round = round_number
        self.roster.move(node, NodePhase.STALE)
        self._send(node, Stop(round_number, f"round {round_number} is over"))

    def _reattach(self, node: Node, link: int, attend: Attend, now: float) -> None:
        if node.link is not None and node.link != link:
            self._unheard.discard(node.link)
            self._out.append(Close(node.link))
        self.roster.attach(node, link)
        claim = attend.claim
        if self.phase is GroupPhase.FINISHED:
            self._tell_verdict(link)
            return
        self._note(f"node {node.spec.node_id} is connected again")
        if self._adoption is not None:
            if claim is not None:
                self._take_claim(node, claim, now)
        elif node.phase is NodePhase.READY:
            node.offer = attend.offer
            if claim is not None and claim.state is not ClaimState.STOPPED:
                self._stop_stale(node, claim.round)
            else:
                self._send(node, self._waiting(now))
        elif claim is None or claim.round < node.round:
            self._start_was_lost(node, attend.offer)
        else:
            self._catch_up(node, claim, attend.offer)

    def _start_was_lost(self, node: Node, offer: Offer) -> None:
        """The stream broke before the node heard of its round."""
        if node.phase is NodePhase.RUNNING and node.place is not None:
            self._send(node, Start(node.place))
        else:
            self._stopped(node, node.round, offer)

    def _catch_up(self, node: Node, claim: Claim, offer: Offer) -> None:
        """Take in what happened on a node while its stream was broken."""
        for failure in claim.failures:
            self._failed(node, claim.round, failure)
        if claim.state is ClaimState.STOPPED:
            self._stopped(node, claim.round, offer)
        elif claim.state is ClaimState.DONE:
            self._done(node, claim.round)
        if node.phase in (NodePhase.STOPPING, NodePhase.STALE):
            self._send(node, Stop(node.round, self._reason))

    # --- a round -----------------------------------------------------------------------------

    def _failed(self, node: Node, round_number: int, failure: Failure) -> None:
        if self._adoption is not None:
            self._adoption.update(node.spec.node_id, round_number, failure=failure)
        elif node.round == round_number == self.round and node.phase in _IN_ROUND:
            self._remember(failure)
            if self.phase is GroupPhase.RUNNING:
                self._break(failure.summary(), counted=True)

    def _remember(self, failure: Failure) -> None:
        key = (failure.kind, failure.rank, failure.pid)
        if key not in self._failures:
            self._failure_count += 1
            if len(self._failures) < _FAILURES_KEPT:
                self._failures[key] = failure

    def _done(self, node: Node, round_number: int) -> None:
        if self._adoption is not None:
            self._adoption.update(node.spec.node_id, round_number, state=ClaimState.DONE)
        elif node.round == round_number and node.phase is NodePhase.RUNNING:
            self.roster.move(node, NodePhase.DONE)

    def _stopped(self, node: Node, round_number: int, offer: Offer) -> None:
        if self._adoption is not None:
            node.offer = offer
            self._adoption.update(node.spec.node_id, round_number, state=ClaimState.STOPPED)
            return
        if node.round != round_number or node.phase is NodePhase.READY:
            return
        if node.phase in (NodePhase.RUNNING, NodePhase.DONE):
            self._break(f"node {node.rank} ({node.spec.host}) stopped its workers", counted=True)
        self.roster.move(node, NodePhase.READY)
        node.offer = offer
        if node.leaving:
            self._let_go(node)

    def _leave(self, node: Node, reason: str) -> None:
        node.leaving = reason
        self._note(f"node {node.spec.node_id} leaves: {reason}")
        if self._adoption is not None and self._adoption.alive(node.spec.node_id):
            return  # it confirms when its workers are dead
        if node.phase is NodePhase.RUNNING:
            self._break(f"node {node.rank} ({node.spec.host}) leaves: {reason}", counted=False)
        elif node.phase in (NodePhase.READY, NodePhase.DONE):
            self._let_go(node)

    def _let_go(self, node: Node) -> None:
        if node.link is not None:
            self._out.append(Close(node.link))
        self._forget(node)

    def _lose(self, node: Node, why: str) -> None:
        if self.phase is not GroupPhase.FINISHED:
            self._note(f"node {node.spec.node_id} is lost: {why}")
        was_running = node.phase is NodePhase.RUNNING
        self._forget(node)
        if was_running:
            failure = node_lost(node.rank, node.spec.host, node.spec.role, why)
            self._remember(failure)
            self._break(failure.summary(), counted=True)

    def _forget(self, node: Node) -> None:
        if node.rank is not None:
            self._former_ranks[node.spec.node_id] = node.rank
        self.roster.remove(node)

    def _break(self, reason: str, *, counted: bool) -> None:
        """End the round on every member: the lockstep stop."""
        assert self.phase is GroupPhase.RUNNING
        self.phase = GroupPhase.STOPPING
        self._counted = counted
        self._reason = reason
        self._rescale_at = None
        for node in self.roster.in_phase(NodePhase.RUNNING, NodePhase.DONE):
            self.roster.move(node, NodePhase.STOPPING)
            self._send(node, Stop(self.round, reason))

    def _growth(self) -> int:
        """Return how many nodes more than now a world could have."""
        job = self.job
        if self.phase is not GroupPhase.RUNNING or job is None:
            return 0
        size = usable_size(len(self.roster), job.min_nodes, job.max_nodes, job.node_unit)
        return size - self.world_nodes

    def _plan_rescale(self, now: float) -> None:
        delay = self.settings.rescale_delay_s
        if delay is not None and self._rescale_at is None and self._growth() > 0:
            self._rescale_at = now + delay

    def _rescale(self) -> None:
        self._rescale_at = None
        growth = self._growth()
        if growth > 0:
            size = self.world_nodes + growth
            self._break(f"the world grows from {self.world_nodes} to {size} nodes", counted=False)

    # --- progress ----------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self._adoption is not None:
            self._try_adopt(now)
        if self.phase is GroupPhase.RUNNING and not self.roster.count(NodePhase.RUNNING):
            self._finish(Outcome.SUCCEEDED, now)
        if self.phase is GroupPhase.STOPPING and not self.roster.count(NodePhase.STOPPING):
            self._round_is_over(now)
        if self.phase is GroupPhase.GATHERING:
            self._try_form(now)
        if self.phase is GroupPhase.FINISHED:
            self._try_end(now)

    def _round_is_over(self, now: float) -> None:
        assert self.job is not None
        self._cause = root_cause(list(self._failures.values())) if self._counted else None
        if self._cause is not None:
            self._reason = self._cause.summary()
        self.phase = GroupPhase.GATHERING
        self._lobby.open(now)
        stuck = any(failure.kind is FailureKind.STUCK for failure in self._failures.values())
        if stuck or (self._counted and self.restarts >= self.job.max_restarts):
            self._finish(Outcome.WORKERS_FAILED, now)
        elif self._counted:
            self.restarts += 1

    def _try_form(self, now: float) -> None:
        job = self.job
        if job is None:
            return
        ready = self.roster.ready_attached()
        size = usable_size(ready, job.min_nodes, job.max_nodes, job.node_unit)
        # Known nodes that are detached or still stopping are waited for: nobody who is alive is
        # left out because he was slow.
        settled = ready == len(self.roster)
        if self._formed_before:
            complete = settled
        else:
            complete = size == job.max_nodes or (settled and self._lobby.last_call() <= now)
        if size and complete:
            self._form(size, now)
        elif self._lobby.overdue(now):
            self._finish(Outcome.RENDEZVOUS_FAILED, now)

    def _form(self, size: int, now: float) -> None:
        assert self.job is not None
        candidates = [
            Candidate(node.spec, node.offer, node.arrival, node.rank)
            for node in self.roster.in_phase(NodePhase.READY)
            if node.link is not None
        ]
        self.round += 1
        world = form(self.round, order(candidates, size))
        self.world_nodes = size
        self.phase = GroupPhase.RUNNING
        self._formed_before = True
        self._failures, self._failure_count = {}, 0
        self._former_ranks = {}
        self._lobby.close()
        reason, self._reason = self._reason or "all nodes are there", ""
        self._note(
            f"round={self.round} formed nodes={size} world_size={world.world_size} "
            f"restarts={self.restarts}/{self.job.max_restarts} ({reason})"
        )
        self._start(world, reason)
        waiting = self._waiting(now)
        for spare in self.roster.in_phase(NodePhase.READY):
            spare.rank = None
            self._send(spare, waiting)

    def _start(self, world: World, reason: str) -> None:
        cause, self._cause = self._cause, None
        base = Place(
            round=world.round,
            restarts=self.restarts,
            node_rank=0,
            nodes=len(world.members),
            rank_offset=0,
            world_size=world.world_size,
            role_rank_offset=0,
            role_world_size=0,
            master_addr=world.master.address,
            master_port=world.master.port,
            reason=reason,
            cause=cause,
        )
        for member in world.members:
            node = self.roster.get(member.node_id)
            assert node is not None
            node.place = replace(
                base,
                node_rank=member.node_rank,
                rank_offset=member.rank_offset,
                role_rank_offset=member.role_rank_offset,
                role_world_size=member.role_world_size,
            )
            node.round, node.rank = world.round, member.node_rank
            node.rank_offset = member.rank_offset
            self.roster.move(node, NodePhase.RUNNING)
            self._send(node, Start(node.place))

    # --- taking over from an earlier master --------------------------------------------------

    def _take_claim(self, node: Node, claim: Claim, now: float) -> None:
        if self._adoption is None:
            self._adoption = Adoption(now + self.settings.adoption_grace_s)
            self.phase = GroupPhase.ADOPTING
            self._note(f"round={claim.round} was formed by an earlier master; taking it over")
        self._adoption.claim(node.spec.node_id, claim)

    def _try_adopt(self, now: float) -> None:
        adoption = self._adoption
        assert adoption is not None
        adoption.keep(self.roster)
        if not adoption.claims:
            # They are gone again. Their rounds are not: numbers never repeat.
            self._adopted(adoption)
            self.phase = GroupPhase.GATHERING
            self._lobby.open(now)
            return
        finding = adoption.judge(len(self.roster), now)
        if finding is not Finding.INCOMPLETE:
            self._adopt(adoption, finding)

    def _adopted(self, adoption: Adoption) -> None:
        self._adoption = None
        self._formed_before = True
        self.round = adoption.round
        self.restarts = adoption.restarts

    def _adopt(self, adoption: Adoption, finding: Finding) -> None:
        self._adopted(adoption)
        self.phase = GroupPhase.RUNNING
        self._lobby.close()
        members, missing = adoption.members(), adoption.missing()
        self.world_nodes = len(members) + missing
        self._note(
            f"round={self.round} taken over nodes={len(members)}/{self.world_nodes} "
            f"restarts={self.restarts} ({finding.value})"
        )
        for name, claim in adoption.claims.items():
            node = self.roster.get(name)
            assert node is not None
            node.rank, node.rank_offset = claim.node_rank, claim.rank_offset
            for failure in claim.failures if name in members else ():
                self._remember(failure)
            if claim.state is ClaimState.STOPPED:
                continue
            if name not in members:
                self._stop_stale(node, claim.round)
                continue
            node.round = claim.round
            self.roster.move(node, NodePhase.RUNNING)
            if claim.state is ClaimState.DONE:
                self.roster.move(node, NodePhase.DONE)
        self._judge_adopted(finding, missing)

    def _judge_adopted(self, finding: Finding, missing: int) -> None:
        if finding is Finding.FAILED:
            if not self._failures:
                grace = f"{self.settings.adoption_grace_s:g} s"
                why = f"{missing} node(s) did not come back to the new master within {grace}"
                self._remember(node_lost(None, "unknown", "", why))
            self._break(next(iter(self._failures.values())).summary(), counted=True)
        elif finding is Finding.BROKEN:
            self._break(finding.value, counted=False)
        else:
            leavers = [node for node in self.roster.in_phase(NodePhase.RUNNING) if node.leaving]
            for node in leavers[:1]:
                self._leave(node, node.leaving)
        for node in self.roster.in_phase(NodePhase.READY, NodePhase.DONE):
            if node.leaving:
                self._let_go(node)

    # --- the end -----------------------------------------------------------------------------

    def _finish(self, outcome: Outcome, now: float) -> None:
        failed = outcome is Outcome.WORKERS_FAILED
        cause = self._cause if failed else None
        kept = sorted(self._failures.values(), key=lambda failure: failure is not cause)
        self.verdict = Verdict(
            outcome=outcome,
            exit_code=_EXIT_CODES[outcome],
            sentence=self._sentence(outcome),
            restarts=self.restarts,
            rounds=self.round + 1,
            cause=cause,
            failures=tuple(kept[: defaults.FAILURES_IN_VERDICT]) if failed else (),
            failure_count=self._failure_count if failed else 0,
        )
        self.phase = GroupPhase.FINISHED
        self._rescale_at = None
        self._lobby.close()
        self._verdict_until = now + self.settings.verdict_grace_s
        self._note(f"verdict: {self.verdict.sentence}")
        for node in self.roster:
            if node.link is not None:
                self._tell_verdict(node.link)

    def _sentence(self, outcome: Outcome) -> str:
        assert self.job is not None
        spent = f"{self.restarts} of {self.job.max_restarts} restarts used"
        if outcome is Outcome.SUCCEEDED:
            return f"all workers succeeded ({spent})"
        if outcome is Outcome.WORKERS_FAILED:
            return f"{self._reason} ({spent})"
        missing = ", ".join(missing_names(self.job, self.roster, self._former_ranks))
        return (
            f"{len(self.roster)} of at least {self.job.min_nodes} nodes came within "
            f"{self.settings.join_timeout_s:g} s" + (f"; missing: {missing}" if missing else "")
        )

    def _tell_verdict(self, link: int) -> None:
        assert self.verdict is not None
        self._unheard.add(link)
        self._out.append(Send(link, self.verdict))

    def _try_end(self, now: float) -> None:
        assert self.verdict is not None
        heard = not self._unheard and not self.roster.detached
        if not self._ended and (heard or now >= self._verdict_until):
            self._ended = True
            self._out.append(Finish(self.verdict))

    # --- output ------------------------------------------------------------------------------

    def _waiting(self, now: float) -> Waiting:
        assert self.job is not None
        missing = missing_names(self.job, self.roster, self._former_ranks)
        spare = self.phase in (GroupPhase.RUNNING, GroupPhase.STOPPING)
        return self._lobby.waiting(self.job, len(self.roster), missing, now, spare=spare)

    def _send(self, node: Node, message: MasterMessage) -> None:
        if node.link is not None:
            self._out.append(Send(node.link, message))

    def _note(self, text: str) -> None:
        self._out.append(Note(text))


_IN_ROUND = (NodePhase.RUNNING, NodePhase.DONE, NodePhase.STOPPING)

_EXIT_CODES = {
    Outcome.SUCCEEDED: exit_codes.SUCCESS,
    Outcome.WORKERS_FAILED: exit_codes.WORKERS_FAILED,
    Outcome.RENDEZVOUS_FAILED: exit_codes.RENDEZVOUS_FAILED,
}
