"""Grants the pieces of ``shared_work`` to nodes: work that no step waits for.

A piece is confirmed once its body has ended. It is granted to one node of a round at a time, the
lowest first, and again in the next round if it is not confirmed.

The group reports two facts only: a round has started, with these members, and a node is gone. A
node is identified by its incarnation. Directly after ``Attend``, each node claims the pieces that
it holds and has confirmed, in a report for each name, so that a new master needs nothing else.
**Nothing is granted until every member of the round has claimed or is gone**: a piece that looks
free may be held by a member whose claim is on its way, after a takeover or a broken connection.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ...events.master import MasterEvent, PieceFails, WorkAdvanced
from ..protocol.failure import Failure
from ..protocol.status import WorkProgress
from .intervals import Intervals, are_bounds, pairs
from .messages import DOING, NAMES_MAX, WorkClaim, WorkGrant, WorkReport
from .pace import Pace

_BATCH_S = 1.0
"""A node gets work for about this long, so that it sends about one request in that time."""
_REQUESTS_PER_S = 500
"""Maximum request rate per name, over all nodes; with more nodes, each batch gets longer."""
_STRETCH_S = 10.0
_NOTED_S = 60.0
_FRAGMENTS_MAX = 1_000
"""Maximum number of intervals in a grant."""
_NAMED_FROM = 3
_FAILED_MAX = 1_000


class Work:
    """The pieces of one name."""

    def __init__(self, claim: WorkClaim, now: float) -> None:
        self.claim = claim
        self.confirmed = Intervals()
        self.free = Intervals((0, claim.pieces) if claim.size else ())
        self.held: dict[str, Sequence[int]] = {}
        """Pieces that nodes of the round hold, by node."""
        self.rates: dict[str, float] = {}
        """Pieces per second, by node of the round."""
        self.waiting: dict[str, WorkReport] = {}
        """Last unanswered request of each node, oldest first."""
        self.pace = Pace(now, _STRETCH_S)
        """Pace of items."""
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
        """Number of confirmed items."""
        return min(self.claim.size, len(self.confirmed) * self.claim.grain)

    @property
    def batch_s(self) -> float:
        """How long the pieces of a node should last, in seconds."""
        return max(_BATCH_S, len(self.rates) / _REQUESTS_PER_S)

    def confirm(self, bounds: Sequence[int]) -> None:
        """Record that the bodies of these pieces have ended."""
        for low, high in pairs(bounds):
            self.confirmed.add(low, high)
            self.free.remove(low, high)

    def hold(self, node_id: str, bounds: Sequence[int] = ()) -> None:
        """Replace the pieces that a node holds; its previous, unconfirmed pieces become free."""
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

        Near the end, it gets half of its share by its rate, so that all nodes end together.
        """
        share = len(self.free) * report.rate / (2 * sum(self.rates.values()) or 1)
        wanted = max(report.idle, int(min(math.ceil(report.rate * self.batch_s), share)))
        pieces = self.free.take(wanted)
        for low, high in pairs(pieces[2 * _FRAGMENTS_MAX :]):
            self.free.add(low, high)
        return pieces[: 2 * _FRAGMENTS_MAX]

    def left_s(self, now: float) -> float:
        """Return the seconds to the end at this rate; 0 if unknown, or at the end."""
        rate = self.pace.per_s(now, self.done)
        return (self.claim.size - self.done) / rate if rate else 0.0


Output = tuple[str, WorkGrant] | MasterEvent
"""A grant with its node, or an event."""


class SharedWork:
    """All names of a job, which are kept to its end: a restarted loop then ends immediately."""

    def __init__(self) -> None:
        self.names: dict[str, Work] = {}
        self._now = 0.0
        self._round, self._members = -1, set[str]()
        """Round in which pieces are granted, and its nodes."""
        self._unclaimed: dict[str, int] = {}
        """Number of outstanding reports of a node's claim."""
        self._awaited: set[str] = set()
        """Members among them: nothing is granted before they have claimed or are gone."""
        self._claimed: dict[str, tuple[int, dict[str, Sequence[int]]]] = {}
        """Round in which a node holds pieces, and these pieces by name."""
        self._numbers: dict[str, int] = {}
        """Number of each node's last report."""
        self._due: set[str] = set()
        """Names with a change after which a request may be answered."""
        self._failed: dict[str, set[tuple[int, int]]] = {}
        """Round and rank of each worker that failed while doing a piece, by piece."""
        self._outputs: list[Output] = []

    def progress(self, now: float) -> tuple[WorkProgress, ...]:
        """Return the progress of each name."""
        return tuple(
            WorkProgress(
                name,
                work.done,
                work.claim.size,
                work.pace.per_s(now, work.done),
                work.left_s(now),
                what="shared work",
                unit="items",
            )
            for name, work in self.names.items()
        )

    def take(self, *, grants: bool) -> list[Output]:
        """Return events and, if wanted, grants since the last call, in order."""
        if grants and self._round >= 0 and not self._awaited:
            while self._due:
                self._hand_out(self.names[self._due.pop()])
        outputs, self._outputs = self._outputs, []
        return outputs

    # --- the group ---------------------------------------------------------------------------

    def round_began(self, number: int, members: frozenset[str]) -> None:
        """Free all held pieces, except those claimed in a round that was taken over."""
        self._round, self._members = number, set(members)
        self._awaited = {node for node in self._unclaimed if node in members}
        for work in self.names.values():
            work.rates.clear()
            for node in list(work.held):
                work.hold(node)
        for node in self._claimed:
            self._apply(node, self.names)
        self._due.update(self.names)

    def node_gone(self, node: str) -> None:
        """Free the pieces of a node."""
        self.disconnected(node)
        self._unclaimed.pop(node, None)
        self._awaited.discard(node)
        self._members.discard(node)
        self._claimed.pop(node, None)
        self._numbers.pop(node, None)
        for work in self.names.values():
            work.rates.pop(node, None)
            work.hold(node)
        self._due.update(self.names)

    # --- the streams of nodes ----------------------------------------------------------------

    def connected(self, node: str, claims: int) -> None:
        """Wait for a node's claim: this many reports, which replace all earlier ones."""
        self.disconnected(node)
        self._unclaimed.pop(node, None)
        self._awaited.discard(node)
        if claims:
            self._unclaimed[node] = claims
            if node in self._members:
                self._awaited.add(node)

    def disconnected(self, node: str) -> None:
        """Drop the requests of a node, which sends them again when it reconnects."""
        for work in self.names.values():
            work.waiting.pop(node, None)

    def reported(self, node: str, report: WorkReport, now: float) -> None:
        """Apply a report; its request is answered when pieces are free, or all are confirmed."""
        self._now = now
        if report.number <= self._numbers.get(node, -1):
            return  # a duplicate
        self._numbers[node] = report.number
        is_claim = self._is_claim(node)
        for claim in report.others:
            self._take(node, WorkReport(report.round, report.number, claim, 0.0, 0), is_claim)
        self._take(node, report, is_claim)

    def _take(self, node: str, report: WorkReport, is_claim: bool) -> None:
        claim = report.claim
        work = self._of(claim)
        if not isinstance(work, Work):
            refusal = WorkGrant(report.number, claim.name, (), 0, refusal=work)
            self._outputs.append((node, refusal))
            return
        before = work.done
        self._confirm(work, claim.confirmed)
        if is_claim:
            work.pace.skip(work.done - before)
        number, held = self._claimed.get(node, (-1, {}))
        self._claimed[node] = (report.round, held if number == report.round else {})
        self._claimed[node][1][claim.name] = claim.held
        work.waiting.pop(node, None)
        if report.idle:
            work.waiting[node] = report
        self._apply(node, (claim.name,))
        if node in work.held or report.idle:
            work.rates[node] = report.rate
        else:
            work.rates.pop(node, None)  # no worker of the node is in the loop

    def _is_claim(self, node: str) -> bool:
        """Count a report of a node; return whether it is part of its claim."""
        left = self._unclaimed.pop(node, 0)
        if left > 1:
            self._unclaimed[node] = left - 1
        elif node in self._awaited:
            self._awaited.remove(node)
            self._due.update(self.names)
        return left > 0

    def noted(self, round_number: int, failure: Failure) -> Failure:
        """Add to a failure's note how many workers have failed in its piece.

        The node has named the piece in the note (``WorkClaim.note``).
        """
        if not failure.note.startswith(DOING) or failure.after_stop:
            return failure
        piece = failure.note.removeprefix(DOING)
        if piece not in self._failed and len(self._failed) >= _FAILED_MAX:
            return failure
        workers = self._failed.setdefault(piece, set())
        before = len(workers)
        workers.add((round_number, failure.rank))
        if len(workers) < _NAMED_FROM:
            return failure
        if len(workers) > before:
            self._outputs.append(PieceFails(piece, len(workers)))
        note = f"{failure.note}, in which {len(workers)} workers have failed"
        return replace(failure, note=note)

    # --- grants ------------------------------------------------------------------------------

    def _hand_out(self, work: Work) -> None:
        while work.waiting and (work.free or work.is_over):
            node, report = next(iter(work.waiting.items()))
            del work.waiting[node]
            if not self._is_in_round(node, report.round):
                continue
            pieces = work.grant(report)
            if pieces:
                work.held[node] = [*work.held.get(node, ()), *pieces]
            name, to = work.claim.name, work.confirmed_to
            grant = WorkGrant(report.number, name, tuple(pieces), to, work.batch_s)
            self._outputs.append((node, grant))

    # --- helpers -----------------------------------------------------------------------------

    def _is_in_round(self, node: str, number: int) -> bool:
        return number == self._round and node in self._members

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
        self.names[claim.name] = work = Work(own, self._now)
        return work

    def _apply(self, node: str, names: Iterable[str]) -> None:
        """Record the pieces that a node of the round holds, from its last claim."""
        number, held = self._claimed.get(node, (-1, {}))
        if self._is_in_round(node, number):
            for name in names:
                self.names[name].hold(node, held.get(name, ()))

    def _confirm(self, work: Work, bounds: Sequence[int]) -> None:
        was_over, now = work.is_over, self._now
        work.confirm(bounds)
        self._due.add(work.claim.name)
        if work.is_over > was_over or now - work.noted_at >= _NOTED_S:
            work.noted_at, done, size = now, work.done, work.claim.size
            rate = work.pace.per_s(now, done)
            self._outputs.append(WorkAdvanced(work.claim.name, done, size, rate, work.left_s(now)))
        if work.pace.is_due(now):
            work.pace.count(now, work.done)
