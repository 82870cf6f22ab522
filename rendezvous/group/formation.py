"""When a round is formed and of which nodes, including the checks before it."""

from ...events.master import RoundFormed
from ..protocol.carried import changes
from ..protocol.failure import Failure
from ..protocol.messages import Assignment, Outcome, Start
from ..protocol.offer import Resumption
from .checks import Findings
from .outbox import Outbox
from .phases import Checking, Gathering
from .resumption import Line, resumption
from .roster import Node, NodePhase, Sizes, sizes_of
from .rounds import Rounds
from .state import JobState
from .waiting import WaitingNodes
from .world import form, largest_size, order_by_segment

_ROUNDS_AHEAD_MAX = 10_000
"""No other master can be further ahead with nodes of this job."""


class Formation:
    """Forms the rounds."""

    def __init__(self, state: JobState, out: Outbox, waiting: WaitingNodes, rounds: Rounds) -> None:
        self._state, self._roster, self._out = state, state.roster, out
        self._waiting, self._rounds = waiting, rounds

    def try_form(self, now: float) -> None:
        """Form a world if there are enough nodes, and it is time."""
        job = self._state.job
        if job is None or now < self._waiting.opens_at:
            return
        ready = self._roster.ready_attached()
        size = self._state.usable(self._rounds.gate.may_join())
        # Wait for known nodes that are detached or still stopping, so that no live node is left out
        # because it was slow.
        settled = ready == len(self._roster)
        if self._state.formed_before:
            complete = settled
        else:
            complete = size == largest_size(job.max_nodes, job.node_unit) or (
                settled and self._waiting.last_call() <= now
            )
        overdue = self._waiting.overdue(now)
        if size and (complete or overdue):
            for node in self._roster.in_phase(NodePhase.STALE):
                self._give_up(node)
            if self._rounds.gate.must_examine(size):
                self._begin_checks(now)
            else:
                self._form(size, now)
        elif overdue:
            self._rounds.finish(Outcome.RENDEZVOUS_FAILED, now, self._waiting.not_enough())

    def _fit(self) -> list[Node]:
        return self._rounds.gate.fit(self._roster.ready_nodes())

    def _give_up(self, node: Node) -> None:
        self._out.close(node.link)
        self._rounds.lose(node, "its workers did not stop in time")

    def _form(self, size: int, now: float) -> None:
        assert self._state.job is not None
        unit = self._state.job.node_unit
        members = order_by_segment(self._fit(), size, unit, self._state.segments)
        line = Line(self._state.round, self._state.formed_by)
        self._state.round = self._state.highest = self._next_round(members)
        self._state.formed_by = self._state.master_id
        self._state.term = self._state.settings.term
        self._state.newest = self._state.term, self._state.round
        resumed = resumption(members, line)
        self._state.world_nodes = size
        if not self._state.formed_before:
            self._state.aftermath.carry(members[0].offer.carried)
        for member in members:
            self._state.aftermath.carry(changes(member.offer.carried))
        self._state.formed_before = True
        self._state.former_ranks = {}
        self._waiting.close()
        ended = self._rounds.begin(now)
        reason = ended.reason or "all nodes connected"
        world_size = sum(node.spec.local_world_size for node in members)
        self._out.note(
            RoundFormed(
                self._state.round,
                size,
                world_size,
                self._state.restarts,
                self._state.job.max_restarts,
                reason,
            )
        )
        self._start(members, world_size, reason, ended.cause, resumed)
        self._waiting.forget_newcomers()
        waiting = self._waiting.waiting(now)
        for spare in self._roster.in_phase(NodePhase.READY):
            spare.rank = None
            self._out.send(spare, waiting)
        self._rounds.plan_rescale(now)  # nodes that were left out may still turn out to be fit

    def _next_round(self, members: list[Node]) -> int:
        """Return a number that no member has seen: a node ignores any that is not above its last.

        A node's number counts only if the node is a member. Numbers from nodes and from other hosts
        can raise it only to a limit.
        """
        highest = max(self._state.round, self._state.highest)
        seen = max(node.last_round for node in members)
        return min(max(seen, highest), self._state.round + _ROUNDS_AHEAD_MAX) + 1

    def _start(
        self,
        members: list[Node],
        world_size: int,
        reason: str,
        cause: Failure | None,
        resumed: Resumption | None,
    ) -> None:
        state, store = self._state, members[0].offer
        base = Assignment(
            round=state.round,
            formed_by=state.formed_by,
            term=state.term,
            restarts=state.restarts,
            node_rank=0,
            nodes=len(members),
            rank_offset=0,
            world_size=world_size,
            role_rank_offset=0,
            role_world_size=0,
            successor="",
            master_addr=store.address,
            master_port=store.port,
            reason=reason,
            cause=cause,
            decision=self._rounds.answer.words if cause is not None else "",
            is_free=cause is not None and not self._rounds.answer.is_counted,
            restarts_in_window=state.restarts_in_budget if state.policy.restart_window_s else 0,
            past=state.aftermath.past(state.policy, state.now),
            resumption=resumed,
        )
        state.members = {rank: node.spec.node_id for rank, node in enumerate(members)}
        state.place({rank: node.spec.segment for rank, node in enumerate(members)})
        for node, part in zip(members, form(base, members), strict=True):
            node.assignment, node.round = part, part.round
            node.rank, node.rank_offset = part.node_rank, part.rank_offset
            state.served.add(node.spec.incarnation)
            self._roster.move(node, NodePhase.RUNNING)
            self._out.send(node, Start(part))

    # --- checks before a round ---------------------------------------------------------------

    def _begin_checks(self, now: float) -> None:
        self._state.phase = Checking()
        self._waiting.close()
        self._waiting.forget_newcomers()
        self._rounds.gate.begin(now)
        self.advance_checks(now)

    def advance_checks(self, now: float) -> None:
        """Advance the checks; when they have ended, form a world of the nodes that are fit."""
        found = self._rounds.gate.advance(now)
        if found is None:
            return
        self._state.phase = Gathering()
        size = self._state.usable(sizes_of(self._fit()))
        if found.ends_job:
            self._rounds.finish(Outcome.SUCCEEDED, now, f"checks finished: {found.sentence}")
        elif size:
            self._form(size, now)
        elif found.costs_nodes and not self._state.usable(self._potential()):
            self._rounds.finish(Outcome.CHECKS_FAILED, now, self._too_few(found))
        else:
            self._waiting.open(now)  # lost nodes may be replaced, and newcomers are checked next

    def _potential(self) -> Sizes:
        """Return how many nodes could be in a world in the best case."""
        late = [node for node in self._roster if node.link is None or node.phase is NodePhase.STALE]
        return self._rounds.gate.may_join() + sizes_of(late)

    def _too_few(self, found: Findings) -> str:
        assert self._state.job is not None
        job = self._state.job
        unit = f" in multiples of {job.node_unit}" if job.node_unit > 1 else ""
        return (
            f"{len(self._fit())} of at least {job.min_nodes} nodes{unit} are usable after the "
            f"checks: {found.sentence}"
        )
