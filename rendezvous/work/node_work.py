"""A node's part in ``shared_work``: hands pieces to its workers, keeps what they confirm.

No I/O, no clock. Pieces come from the master in batches. What the workers of this node have
confirmed is kept for the life of the agent and claimed to every master.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from .intervals import Intervals
from .messages import BOUNDS_MAX, NAMES_MAX, RATE_MAX, WorkClaim, WorkGrant, WorkReport
from .pace import Pace

OVER = -1
"""The answer to a worker: all pieces are confirmed."""
_REPORTED_AFTER = 2
"""Confirmed pieces are reported after the time of so many batches at the latest. What would then
last for longer than another one is given back."""
_ANSWER_S = 0.02
"""A request that is not answered by then waits for pieces of other nodes."""
_STRETCH_S = 1.0
_GROWTH = 4
"""The next batch has at most so many times the pieces done so far: a first one may be short."""


class Taker(NamedTuple):
    """One loop of a worker: the number distinguishes loops of a rank."""

    rank: int
    number: int


class _Work:
    """The pieces of one name."""

    def __init__(self, claim: WorkClaim, now: float) -> None:
        self.claim = claim
        self.confirmed, self.unsent = Intervals(), Intervals()
        """By workers of this node, and those of them that no report has."""
        self.queue = Intervals()
        """Granted, and not handed to a worker yet."""
        self.in_hand: dict[Taker, int] = {}
        self.idle: list[Taker] = []
        """Loops that wait for a piece."""
        self.batch_s = 1.0
        self.is_known = False
        """A master has agreed to its size and grain."""
        self.number = -1
        """Of the request that is to be answered; -1: none is."""
        self.done = 0
        """Pieces that workers of this node have confirmed in this round."""
        self.begin(now)

    def begin(self, now: float) -> None:
        """Begin a round: nothing is held."""
        self.queue.bounds.clear()
        self.in_hand.clear()
        self.idle.clear()
        self.number, self.done = -1, 0
        self.pace, self.reported_at = Pace(now, _STRETCH_S), now

    @property
    def is_over(self) -> bool:
        """Whether all pieces are confirmed."""
        whole = [0, self.claim.pieces] if self.claim.size else []
        return self.is_known and self.confirmed.bounds == whole

    @property
    def due_at(self) -> float:
        """When the next report is due that is no request; infinity: only after a change."""
        if self.unsent and self.idle and not self.in_hand:  # others may wait for these pieces
            return self.reported_at + _ANSWER_S
        later = self.reported_at + _REPORTED_AFTER * self.batch_s
        return later if self.unsent or self.queue else math.inf

    def rate(self, now: float) -> float:
        """Return the pieces per second."""
        return min(self.pace.per_s(now, self.done), _GROWTH * self.done, RATE_MAX)

    def take_unsent(self) -> WorkClaim:
        """Return what was confirmed since the last report, for the next one."""
        confirmed = tuple(self.unsent.bounds[:BOUNDS_MAX])
        del self.unsent.bounds[:BOUNDS_MAX]
        return replace(self.claim, confirmed=confirmed)

    def held(self) -> tuple[int, ...]:
        """Return the bounds of what this node holds."""
        held = Intervals(self.queue.bounds)
        for piece in self.in_hand.values():
            held.add(piece, piece + 1)
        return tuple(held.bounds[:BOUNDS_MAX])


class NodeWork:
    """The shared work of one node, by name."""

    def __init__(
        self, send: Callable[[WorkReport], None], answer: Callable[[Taker, int | str], None]
    ) -> None:
        """Start without work.

        Args:
            send: sends a message to the master; it is lost while the master is disconnected.
            answer: sends a worker a piece, ``OVER``, or why it gets none.
        """
        self._send, self._answer = send, answer
        self._names: dict[str, _Work] = {}
        self._round, self._number = -1, 0
        self._left: dict[int, tuple[Taker, str]] = {}
        """By rank: the loop that it has left by an exception or ``break``, and its name."""

    # --- workers -----------------------------------------------------------------------------

    def ask(self, taker: Taker, claim: WorkClaim, now: float) -> None:
        """Handle a worker's request for a piece, which confirms the one that it holds."""
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
            work.queue.bounds.clear()  # no loop of this node needs pieces, or those requested
            self._report(work, now)

    def exited(self, rank: int, now: float) -> None:
        """Give back the pieces of a worker that has exited with 0."""
        for name, work in self._names.items():
            for taker in [one for one in (*work.in_hand, *work.idle) if one.rank == rank]:
                self.give_back(taker, name, now)

    def note_of(self, rank: int) -> str:
        """Return the note of a worker, which names the piece that it is doing; empty if none."""
        for work in self._names.values():
            for taker, piece in work.in_hand.items():
                if taker.rank == rank:
                    return work.claim.note(piece)
        return ""

    # --- rounds ------------------------------------------------------------------------------

    def begin(self, round_number: int, now: float) -> None:
        """A round begins: no worker has a piece."""
        self._round = round_number
        self._left.clear()
        for work in self._names.values():
            work.begin(now)

    def end(self, now: float) -> None:
        """End a round, without live workers: report what was confirmed since the last report."""
        for work in self._names.values():
            work.begin(now)
            while work.unsent:
                self._report(work, now)

    # --- the master --------------------------------------------------------------------------

    @property
    def names(self) -> int:
        """The number of reports in ``claims``."""
        return len(self._names)

    def claims(self, now: float) -> list[WorkReport]:
        """Return the claim for a new stream: it replaces all that was sent before."""
        for work in self._names.values():
            work.unsent.bounds[:] = work.confirmed.bounds
        return [self._new_report(work, now) for work in self._names.values()]

    def granted(self, grant: WorkGrant, now: float) -> None:
        """Hand out the pieces of a grant."""
        work = self._names.get(grant.name)
        if work is None or grant.number != work.number:
            return
        work.number = -1
        if grant.refusal:
            if not work.is_known:
                del self._names[grant.name]  # the next round may use another size
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
        """Return when ``tick`` is to report something; infinity: never."""
        return min((work.due_at for work in self._names.values()), default=math.inf)

    def tick(self, now: float) -> None:
        """Report confirmed pieces that are due, and give back those beyond one batch."""
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
