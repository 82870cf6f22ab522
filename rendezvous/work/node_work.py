"""A node's part of ``shared_work``: hands pieces to its workers, and keeps the confirmed ones.

Pieces come from the master in batches. Pieces confirmed on this node are kept as long as the agent
runs, and claimed to every master.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from .intervals import Intervals
from .messages import BOUNDS_MAX, NAMES_MAX, RATE_MAX, WorkClaim, WorkGrant, WorkReport
from .pace import Pace

OVER = -1
"""Answer to a worker if all pieces are confirmed."""
_REPORTED_AFTER = 2
"""Confirmed pieces are reported after at most this many batch times; pieces for more than one
further batch are then given back."""
_ANSWER_S = 0.02
"""A request that is unanswered after this time waits for pieces of other nodes."""
_STRETCH_S = 1.0
_GROWTH = 4
"""Maximum size of the next batch, relative to the pieces done so far, because first pieces can be
short."""


class Taker(NamedTuple):
    """A worker's loop; ``number`` distinguishes the loops of a rank."""

    rank: int
    number: int


class _Work:
    def __init__(self, claim: WorkClaim, now: float) -> None:
        self.claim = claim
        self.confirmed, self.unsent = Intervals(), Intervals()
        """Pieces confirmed by workers of this node, and those that are not reported yet."""
        self.queue = Intervals()
        """Granted pieces that no worker has yet."""
        self.in_hand: dict[Taker, int] = {}
        self.idle: list[Taker] = []
        """Loops that wait for a piece."""
        self.batch_s = 1.0
        self.is_known = False
        """Whether a master has accepted its size and grain."""
        self.number = -1
        """Number of the unanswered request; -1 if there is none."""
        self.done = 0
        """Pieces that workers of this node have confirmed in this round."""
        self.begin(now)

    def begin(self, now: float) -> None:
        self.queue.bounds.clear()
        self.in_hand.clear()
        self.idle.clear()
        self.number, self.done = -1, 0
        self.pace, self.reported_at = Pace(now, _STRETCH_S), now

    @property
    def is_over(self) -> bool:
        whole = [0, self.claim.pieces] if self.claim.size else []
        return self.is_known and self.confirmed.bounds == whole

    @property
    def due_at(self) -> float:
        """When the next report without a request is due; infinity if only after a change."""
        if self.unsent and self.idle and not self.in_hand:  # other nodes may wait for these pieces
            return self.reported_at + _ANSWER_S
        later = self.reported_at + _REPORTED_AFTER * self.batch_s
        return later if self.unsent or self.queue else math.inf

    def rate(self, now: float) -> float:
        return min(self.pace.per_s(now, self.done), _GROWTH * self.done, RATE_MAX)

    def take_unsent(self) -> WorkClaim:
        confirmed = tuple(self.unsent.bounds[:BOUNDS_MAX])
        del self.unsent.bounds[:BOUNDS_MAX]
        return replace(self.claim, confirmed=confirmed)

    def held(self) -> tuple[int, ...]:
        held = Intervals(self.queue.bounds)
        for piece in self.in_hand.values():
            held.add(piece, piece + 1)
        return tuple(held.bounds[:BOUNDS_MAX])


class NodeWork:
    """The shared work of one node, by name."""

    def __init__(
        self, send: Callable[[WorkReport], None], answer: Callable[[Taker, int | str], None]
    ) -> None:
        """``send`` is lossy while the master is disconnected; ``answer`` may send an error."""
        self._send, self._answer = send, answer
        self._names: dict[str, _Work] = {}
        self._round, self._number = -1, 0
        self._left: dict[int, tuple[Taker, str]] = {}
        """Loop that a rank has left by an exception or ``break``, and its name, by rank."""

    # --- workers -----------------------------------------------------------------------------

    def ask(self, taker: Taker, claim: WorkClaim, now: float) -> None:
        """Handle a worker's request for a piece, which confirms its previous one."""
        if (left := self._left.get(taker.rank)) is not None:
            self.give_back(*left, now)  # this worker is still alive
        work = self._names.get(claim.name)
        if work is None and len(self._names) < NAMES_MAX:
            work = self._names[claim.name] = _Work(claim, now)
        if refusal := self._refusal(work, taker, claim):
            self._answer(taker, refusal)
            return
        assert work is not None
        piece = work.in_hand.pop(taker, None)
        if piece is not None:
            work.done += 1
            work.pace.count(now, work.done)
            work.confirmed.add(piece, piece + 1)
            work.unsent.add(piece, piece + 1)
        if taker not in work.idle:
            work.idle.append(taker)
        self._serve(work, now)

    @staticmethod
    def _refusal(work: _Work | None, taker: Taker, claim: WorkClaim) -> str:
        if work is None:
            return f"invalid name {claim.name!r}: shared_work has {NAMES_MAX} names already"
        others = {one for one in (*work.in_hand, *work.idle) if one.rank == taker.rank} - {taker}
        if others:
            return f"invalid name {claim.name!r}: another loop of this rank is using it"
        return work.claim.difference(claim)

    def leave(self, taker: Taker, name: str) -> None:
        """Record that a worker has left its loop: ``give_back`` follows if it does not fail."""
        self._left[taker.rank] = (taker, name)

    def give_back(self, taker: Taker, name: str, now: float) -> None:
        """Hand the piece of a loop that has ended to another one."""
        if self._left.get(taker.rank) == (taker, name):
            del self._left[taker.rank]
        work = self._names.get(name)
        if work is None:
            return
        if taker in work.idle:
            work.idle.remove(taker)
        piece = work.in_hand.pop(taker, None)
        if piece is not None:
            work.queue.add(piece, piece + 1)
            self._serve(work, now)
        if not work.idle and not work.in_hand and (work.queue or work.number >= 0):
            work.queue.bounds.clear()  # no loop of this node needs them
            self._report(work, now)

    def exited(self, rank: int, now: float) -> None:
        """Give back the pieces of a worker that has exited with 0."""
        for name, work in self._names.items():
            for taker in [one for one in (*work.in_hand, *work.idle) if one.rank == rank]:
                self.give_back(taker, name, now)

    def note_of(self, rank: int) -> str:
        """Return the note of a worker, which names its piece; empty if it has none."""
        for work in self._names.values():
            for taker, piece in work.in_hand.items():
                if taker.rank == rank:
                    return work.claim.note(piece)
        return ""

    # --- rounds ------------------------------------------------------------------------------

    def begin(self, round_number: int, now: float) -> None:
        """Start a round, in which no worker has a piece."""
        self._round = round_number
        self._left.clear()
        for work in self._names.values():
            work.begin(now)

    def end(self, now: float) -> None:
        """End a round, without live workers: report the pieces confirmed since the last report."""
        for work in self._names.values():
            work.begin(now)
            while work.unsent:
                self._report(work, now)

    # --- the master --------------------------------------------------------------------------

    def claims(self, now: float) -> list[WorkReport]:
        """Return the claim for a new stream, which replaces all earlier reports."""
        reports: list[WorkReport] = []
        left = 0
        for work in self._names.values():
            work.unsent.bounds[:] = work.confirmed.bounds
            report = self._new_report(work, now)
            left -= len(report.claim.confirmed)
            if reports and left >= 0 and not report.idle and not report.claim.held:
                others = (*reports[-1].others, report.claim)
                reports[-1] = replace(reports[-1], others=others)
            else:
                reports.append(report)
                left = BOUNDS_MAX - len(report.claim.confirmed)
        return reports

    def granted(self, grant: WorkGrant, now: float) -> None:
        """Hand out the pieces of a grant."""
        work = self._names.get(grant.name)
        if work is None or grant.number != work.number:
            return
        work.number = -1
        if grant.refusal:
            if not work.is_known:
                del self._names[grant.name]  # the next round can use a different size
            takers, work.idle = work.idle, []
            for taker in takers:
                self._answer(taker, grant.refusal)
            return
        work.is_known, work.batch_s = True, grant.batch_s
        work.confirmed.add(0, grant.confirmed_to)
        for low, high in zip(grant.pieces[::2], grant.pieces[1::2], strict=True):
            work.queue.add(low, high)
        self._serve(work, now)

    def due_at(self) -> float:
        """Return when ``tick`` must report something; infinity for never."""
        return min((work.due_at for work in self._names.values()), default=math.inf)

    def tick(self, now: float) -> None:
        """Report confirmed pieces that are due, and give back pieces beyond one batch."""
        for work in self._names.values():
            if work.due_at <= now:
                kept = max(1, math.ceil(work.rate(now) * work.batch_s))
                work.queue.bounds[:] = work.queue.take(kept)
                self._report(work, now)

    def _serve(self, work: _Work, now: float) -> None:
        while work.idle and work.queue:
            taker = work.idle.pop(0)
            (piece, _) = work.queue.take(1)
            work.in_hand[taker] = piece
            self._answer(taker, piece)
        if not work.idle:
            return
        if work.is_over:
            takers, work.idle = work.idle, []
            for taker in takers:
                self._answer(taker, OVER)
            if work.unsent:
                self._report(work, now)
        elif work.number < 0:
            self._report(work, now)

    def _report(self, work: _Work, now: float) -> None:
        self._send(self._new_report(work, now))

    def _new_report(self, work: _Work, now: float) -> WorkReport:
        """Return a report of all unreported pieces, which requests more if workers are idle."""
        self._number += 1
        work.number = self._number if work.idle else -1
        work.reported_at = now
        claim = replace(work.take_unsent(), held=work.held())
        return WorkReport(self._round, self._number, claim, work.rate(now), len(work.idle))
