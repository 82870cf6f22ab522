"""A round's life: formed, running, being stopped, over; and the end of the job. Pure.

This is the lower part of ``group.Group``. It knows who is there and what they report, but not
how they come: that is ``joining``.
"""

import enum
from dataclasses import replace

from .adoption import Adoption
from .ending import Ending, verdict_of
from .events import Close, Command, GroupSettings, Note, Send
from .failure import Failure, node_lost
from .lobby import Lobby, missing_names
from .messages import (
    ClaimState,
    JobSpec,
    MasterMessage,
    Offer,
    Outcome,
    Place,
    Start,
    Stop,
    Verdict,
    Waiting,
)
from .postmortem import Postmortem
from .roster import Node, NodePhase, Roster
from .world import Candidate, World, form, largest_size, order, usable_size

IN_ROUND = (NodePhase.RUNNING, NodePhase.DONE, NodePhase.STOPPING)


class GroupPhase(enum.Enum):
    """What the group as a whole is doing."""

    GATHERING = "waiting for nodes"
    ADOPTING = "taking over a running round"
    RUNNING = "running"
    STOPPING = "stopping a round"
    FINISHED = "finished"


class Rounds:
    """The rounds of one job, and what its nodes report of them."""

    def __init__(self, settings: GroupSettings | None = None, master_id: str = "") -> None:
        """Begin with no node and no round.

        Args:
            settings: the times to keep.
            master_id: random, one per master process; it tells worlds apart.
        """
        self.settings = settings or GroupSettings()
        self._master_id = master_id
        self.job: JobSpec | None = None
        self.roster = Roster()
        self.phase = GroupPhase.GATHERING
        self.round = -1
        self.formed_by = ""
        """The master that formed ``round``: this one, or the one that it was taken over from."""
        self.restarts = 0
        self.world_nodes = 0
        """Nodes in the world of ``round``."""
        self._out: list[Command] = []
        self._lobby = Lobby(self.settings)
        self._adoption: Adoption | None = None
        self._formed_before = False
        self._highest = -1
        """The highest round that any node is known to have been in: numbers never repeat."""
        self._former_ranks: dict[str, int] = {}
        self._postmortem = Postmortem()
        self._rescale_at: float | None = None
        self._newly_ready: list[Node] = []
        self._ending: Ending | None = None

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended; None while it has not."""
        return self._ending.verdict if self._ending is not None else None

    # --- what nodes report -------------------------------------------------------------------

    def _failed(self, node: Node, round_number: int, failure: Failure) -> None:
        if self._adoption is not None:
            self._adoption.update(node.spec.node_id, round_number, failure=failure)
        elif node.round == round_number == self.round and node.phase in IN_ROUND:
            self._postmortem.remember(failure)
            if self.phase is GroupPhase.RUNNING:
                self._break(failure.summary(), counted=True)

    def _done(self, node: Node, round_number: int) -> None:
        if self._adoption is not None:
            self._adoption.update(node.spec.node_id, round_number, state=ClaimState.DONE)
        elif node.round == round_number and node.phase is NodePhase.RUNNING:
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
        if self._ending is None:
            self._note(f"node {node.spec.node_id} is lost: {why}")
        was_running = node.phase is NodePhase.RUNNING
        was_in_round = was_running or node.phase is NodePhase.STOPPING
        self._forget(node)
        if was_in_round and not node.leaving:
            # Also when the round is being stopped already: the first that was heard of a dead
            # node may have been what its peers said of their lost connections.
            self._postmortem.remember(node_lost(node.rank, node.spec.host, node.spec.role, why))
        if was_running:
            self._break(f"node {node.rank} ({node.spec.host}) was lost: {why}", counted=True)

    def _forget(self, node: Node) -> None:
        if node.rank is not None:
            self._former_ranks[node.spec.node_id] = node.rank
        if self._adoption is not None:
            self._adoption.forget(node.spec.node_id)
        self.roster.remove(node)

    # --- the end of a round ------------------------------------------------------------------

    def _break(self, reason: str, *, counted: bool) -> None:
        """End the round on every member: the lockstep stop."""
        assert self.phase is GroupPhase.RUNNING
        self.phase = GroupPhase.STOPPING
        self._postmortem.begin(reason, counted=counted)
        self._rescale_at = None
        stop = Stop(self.round, reason)  # one for all: it is encoded once
        for node in self.roster.in_phase(NodePhase.RUNNING, NodePhase.DONE):
            self.roster.move(node, NodePhase.STOPPING)
            self._send(node, stop)

    def _stop_stale(self, node: Node, round_number: int) -> None:
        node.round = round_number
        self.roster.move(node, NodePhase.STALE)
        self._send(node, Stop(round_number, f"round {round_number} is over"))

    def _round_is_over(self, now: float) -> None:
        assert self.job is not None
        self._postmortem.conclude()
        self.phase = GroupPhase.GATHERING
        self._lobby.open(now)
        counted = self._postmortem.counted
        if self._postmortem.stuck or (counted and self.restarts >= self.job.max_restarts):
            self._finish(Outcome.WORKERS_FAILED, now)
        elif counted:
            self.restarts += 1

    # --- a larger world ----------------------------------------------------------------------

    def _growth(self) -> int:
        """Return how many nodes more than now a world could have."""
        job, members = self.job, self.roster.count(NodePhase.RUNNING)
        # Where a node is done, the job is about to end: nothing is begun anew for a newcomer.
        if self.phase is not GroupPhase.RUNNING or job is None or members < self.world_nodes:
            return 0
        nodes = members + self.roster.ready_attached()
        return usable_size(nodes, job.min_nodes, job.max_nodes, job.node_unit) - members

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

    # --- a new round -------------------------------------------------------------------------

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

    def _give_up(self, node: Node) -> None:
        if node.link is not None:
            self._out.append(Close(node.link))
        self._lose(node, "its workers did not stop in time")

    def _form(self, size: int, now: float) -> None:
        assert self.job is not None
        candidates = [
            Candidate(node.spec, node.offer, node.arrival, node.rank)
            for node in self.roster.in_phase(NodePhase.READY)
            if node.link is not None
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
        self._start(world, reason, ended.cause)
        self._newly_ready = []
        waiting = self._waiting(now)
        for spare in self.roster.in_phase(NodePhase.READY):
            spare.rank = None
            self._send(spare, waiting)

    def _start(self, world: World, reason: str, cause: Failure | None) -> None:
        base = Place(
            round=world.round,
            formed_by=self.formed_by,
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

    # --- the end of the job ------------------------------------------------------------------

    def _finish(self, outcome: Outcome, now: float) -> None:
        sentence = self._sentence(outcome)
        verdict = verdict_of(outcome, sentence, self.restarts, self.round + 1, self._postmortem)
        self._ending = Ending(verdict, now + self.settings.verdict_grace_s)
        self.phase = GroupPhase.FINISHED
        self._rescale_at = None
        self._lobby.close()
        self._note(f"verdict: {verdict.sentence}")
        self._out += self._ending.tell(n.link for n in self.roster if n.link is not None)

    def _sentence(self, outcome: Outcome) -> str:
        assert self.job is not None
        spent = f"{self.restarts} of {self.job.max_restarts} restarts used"
        if outcome is Outcome.SUCCEEDED:
            return f"all workers succeeded ({spent})"
        if outcome is Outcome.WORKERS_FAILED:
            return f"{self._postmortem.reason} ({spent})"
        missing = ", ".join(missing_names(self.job, self.roster, self._former_ranks))
        return (
            f"{len(self.roster)} of at least {self.job.min_nodes} nodes came within "
            f"{self.settings.join_timeout_s:g} s" + (f"; missing: {missing}" if missing else "")
        )

    # --- output ------------------------------------------------------------------------------

    def _wait(self, node: Node, now: float) -> None:
        """A node has become ready: make use of it, and if it still waits then, say for what."""
        self._newly_ready.append(node)
        self._plan_rescale(now)

    def _tell_newly_ready(self, now: float) -> None:
        nodes, self._newly_ready = self._newly_ready, []
        for node in nodes:
            if node.phase is NodePhase.READY and self.phase is not GroupPhase.FINISHED:
                self._send(node, self._waiting(now))

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
