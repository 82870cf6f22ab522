"""Hands out the pieces of ``shared_work``: work that no step waits for. Pure.

A piece is confirmed once its body has ended. It is handed out to one node of a round at a time, the
lowest first, and again in the next round if it is not confirmed. A node that attends claims the
pieces that it holds and has confirmed, so that a new master needs nothing else.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ...events.master import PieceFails, WorkAdvanced
from ..protocol.failure import Failure
from ..protocol.intervals import Intervals, are_bounds, pairs
from ..protocol.messages import Attend
from ..protocol.pace import Pace
from ..protocol.status import WorkProgress
from ..protocol.work_messages import NAMES_MAX, WorkClaim, WorkGrant, WorkReport
from .outbox import Outbox
from .phases import Running
from .roster import Node
from .rounds import IN_ROUND
from .state import JobState

_BATCH_S = 1.0
"""A node gets work for about this long, so that it sends about one request in that time."""
_REQUESTS_PER_S = 500
"""Of all nodes of a name: with more nodes than this, each gets work for longer."""
_STRETCH_S = 10.0
_NOTED_S = 60.0
_FRAGMENTS_MAX = 1_000
"""Intervals in a grant."""
_NAMED_FROM = 3
_FAILED_MAX = 1_000


class Work:
    """The pieces of one name."""

    def __init__(self, claim: WorkClaim, now: float) -> None:
        self.claim = claim
        self.confirmed = Intervals()
        self.free = Intervals((0, claim.pieces) if claim.size else ())
        self.held: dict[str, Sequence[int]] = {}
        """What nodes of the round hold, by identity."""
        self.rates: dict[str, float] = {}
        """Pieces per second, of nodes of the round."""
        self.waiting: dict[str, WorkReport] = {}
        """The last request of nodes that have not been answered, the oldest first."""
        self.pace = Pace(now, _STRETCH_S)
        """Of items."""
        self.noted_at = now

    @property
    def confirmed_to(self) -> int:
        """All pieces below this one are confirmed."""
        bounds = self.confirmed.bounds
        return bounds[1] if bounds and not bounds[0] else 0

    @property
    def is_over(self) -> bool:
        """Whether all pieces are confirmed."""
        return self.confirmed_to == self.claim.pieces

    @property
    def done(self) -> int:
        """The number of confirmed items."""
        return min(self.claim.size, len(self.confirmed) * self.claim.grain)

    @property
    def batch_s(self) -> float:
        """How long the pieces of a node shall last, in seconds."""
        return max(_BATCH_S, len(self.rates) / _REQUESTS_PER_S)

    def confirm(self, bounds: Sequence[int]) -> None:
        """Record that the bodies of these pieces have ended."""
        for low, high in pairs(bounds):
            self.confirmed.add(low, high)
            self.free.remove(low, high)

    def hold(self, node_id: str, bounds: Sequence[int] = ()) -> None:
        """Record all that a node holds now; what it held before and is not confirmed is free."""
        for low, high in pairs(self.held.pop(node_id, ())):
            self.free.add(low, high)
            for done in pairs(self.confirmed.within(low, high)):
                self.free.remove(*done)
        own = [bound for pair in pairs(bounds) for bound in self.free.within(*pair)]
        for low, high in pairs(own):
            self.free.remove(low, high)
        if own:
            self.held[node_id] = own

    def grant(self, report: WorkReport) -> list[int]:
        """Take pieces for a node that requests some.

        Near the end that is half of its share by its rate, so that all nodes end together.
        """
        share = len(self.free) * report.rate / (2 * sum(self.rates.values()) or 1)
        wanted = max(report.idle, int(min(math.ceil(report.rate * self.batch_s), share)))
        pieces = self.free.take(wanted)
        for low, high in pairs(pieces[2 * _FRAGMENTS_MAX :]):
            self.free.add(low, high)
        return pieces[: 2 * _FRAGMENTS_MAX]

    def left_s(self, now: float) -> float:
        """Return the seconds to the end at this rate; 0: not known, or at the end."""
        rate = self.pace.per_s(now, self.done)
        return (self.claim.size - self.done) / rate if rate else 0.0


class SharedWork:
    """All names of a job, which are kept to its end: a loop that is restarted ends at once."""

    def __init__(self, state: JobState, out: Outbox) -> None:
        self._state, self._out = state, out
        self.names: dict[str, Work] = {}
        self._round = -1
        """The round that pieces are handed out in."""
        self._claimed: dict[str, tuple[int, dict[str, Sequence[int]]]] = {}
        """By identity: the round of which a node holds pieces, and these by name."""
        self._numbers: dict[str, int] = {}
        """By identity: the last report."""
        self._due: set[str] = set()
        """Names with a change that may let a request be answered."""
        self._failed: dict[str, set[tuple[int, int]]] = {}
        """By piece: the round and rank of each worker that failed while doing it."""

    def progress(self, now: float) -> tuple[WorkProgress, ...]:
        """Return the progress of each name."""
        return tuple(
            WorkProgress(
                name, work.done, work.claim.size, work.pace.per_s(now, work.done), work.left_s(now)
            )
            for name, work in self.names.items()
        )

    # --- messages of nodes -------------------------------------------------------------------

    def attended(self, node: Node, attend: Attend) -> None:
        """Apply the claim of a node: it replaces all that was sent on its last stream."""
        claim = attend.claim
        held: dict[str, Sequence[int]] = {one.name: one.held for one in attend.work}
        self._claimed[node.spec.node_id] = (claim.round if claim is not None else -1, held)
        for one in attend.work:
            work = self._of(one)
            if isinstance(work, Work):
                before = work.done
                self._confirm(work, one.confirmed)
                work.pace.skip(work.done - before)
        self._apply(node, self.names)

    def confirmed(self, claims: Iterable[WorkClaim]) -> None:
        """Apply what workers of a node had confirmed before they died."""
        for claim in claims:
            work = self._of(claim)
            if isinstance(work, Work):
                self._confirm(work, claim.confirmed)

    def reported(self, node: Node, report: WorkReport) -> None:
        """Apply a report, and answer it if pieces are free."""
        node_id, claim = node.spec.node_id, report.claim
        if report.number <= self._numbers.get(node_id, -1):
            return  # a duplicate
        self._numbers[node_id] = report.number
        work = self._of(claim)
        if not isinstance(work, Work):
            self._out.send(node, WorkGrant(report.number, claim.name, (), 0, refusal=work))
            return
        self._confirm(work, claim.confirmed)
        number, held = self._claimed.get(node_id, (-1, {}))
        self._claimed[node_id] = (report.round, held if number == report.round else {})
        self._claimed[node_id][1][claim.name] = claim.held
        work.waiting.pop(node_id, None)
        if report.idle:
            work.waiting[node_id] = report
        self._apply(node, (claim.name,))
        if node_id in work.held or report.idle:
            work.rates[node_id] = report.rate
        else:
            work.rates.pop(node_id, None)  # no worker of the node is in the loop

    def forget(self, node_id: str) -> None:
        """Free the pieces of a node that is gone."""
        self._claimed.pop(node_id, None)
        self._numbers.pop(node_id, None)
        for work in self.names.values():
            work.waiting.pop(node_id, None)
            work.rates.pop(node_id, None)
            work.hold(node_id)
        self._due.update(self.names)

    def failed(self, round_number: int, failure: Failure) -> Failure:
        """Return the failure of a worker; it names a piece that has failed several workers."""
        piece = failure.piece
        if not piece or failure.after_stop:
            return failure
        if piece not in self._failed and len(self._failed) >= _FAILED_MAX:
            return failure
        workers = self._failed.setdefault(piece, set())
        before = len(workers)
        workers.add((round_number, failure.rank))
        if len(workers) < _NAMED_FROM:
            return failure
        if len(workers) > before:
            self._out.note(PieceFails(piece, len(workers)))
        return replace(failure, piece=f"{piece}, in which {len(workers)} workers have failed")

    # --- messages to nodes -------------------------------------------------------------------

    def advance(self) -> None:
        """Answer the requests that can be answered while a round runs."""
        if self._round != self._state.round:
            self._round_begins()
        if not isinstance(self._state.phase, Running):
            return
        while self._due:
            self._hand_out(self.names[self._due.pop()])

    def _round_begins(self) -> None:
        """Free all held pieces, except those claimed in a round that was taken over."""
        self._round = self._state.round
        for work in self.names.values():
            work.rates.clear()
            for node_id in list(work.held):
                work.hold(node_id)
        for node_id in self._claimed:
            if (node := self._state.roster.get(node_id)) is not None:
                self._apply(node, self.names)

    def _hand_out(self, work: Work) -> None:
        while work.waiting and (work.free or work.is_over):
            node_id, report = next(iter(work.waiting.items()))
            del work.waiting[node_id]
            node = self._state.roster.get(node_id)
            if node is None or node.link is None or not self._is_in_round(node, report.round):
                continue  # it sends the request again when it reconnects
            pieces = work.grant(report)
            if pieces:
                work.held[node_id] = [*work.held.get(node_id, ()), *pieces]
            name, to = work.claim.name, work.confirmed_to
            self._out.send(node, WorkGrant(report.number, name, tuple(pieces), to, work.batch_s))

    # --- helpers -----------------------------------------------------------------------------

    def _is_in_round(self, node: Node, number: int) -> bool:
        return node.phase in IN_ROUND and node.round == number == self._state.round

    def _of(self, claim: WorkClaim) -> Work | str:
        if not claim.grain or not all(
            are_bounds(bounds, claim.pieces) for bounds in (claim.confirmed, claim.held)
        ):
            return f"invalid pieces of shared_work({claim.name!r})"
        work = self.names.get(claim.name)
        if work is not None:
            return work.claim.difference(claim) or work
        if len(self.names) >= NAMES_MAX:
            return f"invalid name {claim.name!r}: shared_work has {NAMES_MAX} names already"
        own = WorkClaim(claim.name, claim.size, claim.grain)
        self.names[claim.name] = work = Work(own, self._state.now)
        return work

    def _apply(self, node: Node, names: Iterable[str]) -> None:
        """Record what a node of the round holds, as it has claimed last."""
        node_id = node.spec.node_id
        number, held = self._claimed.get(node_id, (-1, {}))
        if not self._is_in_round(node, number):
            return
        for name in names:
            self.names[name].hold(node_id, held.get(name, ()))

    def _confirm(self, work: Work, bounds: Sequence[int]) -> None:
        was_over, now = work.is_over, self._state.now
        work.confirm(bounds)
        self._due.add(work.claim.name)
        if work.is_over > was_over or now - work.noted_at >= _NOTED_S:
            work.noted_at, done, size = now, work.done, work.claim.size
            rate = work.pace.per_s(now, done)
            self._out.note(WorkAdvanced(work.claim.name, done, size, rate, work.left_s(now)))
        if work.pace.is_due(now):
            work.pace.count(now, work.done)
