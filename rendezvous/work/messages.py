"""The messages of nodes and the master for ``shared_work``: pieces of work that no step waits for.

Pieces are numbered from 0. A set of them is sent as the bounds of its intervals
(``intervals.Intervals``). Values only.

A node reports, and the master grants. Directly after ``Attend``, which has their number, a node
sends a report for each name: its claim. What the workers of a round have confirmed before they died
is reported before ``Stopped``. The piece of a worker that fails is the note of its ``Failure``.
"""

from typing import Annotated

from msgspec import Struct

from ..protocol.bounds import Count, Length, LongText, Real, Whole, Workers
from ..protocol.messages import RoomMessage

NAME_MAX = 128
SIZE_MAX = 1 << 53
BOUNDS_MAX = 20_000
"""Of one message: more confirmed pieces between unconfirmed ones are claimed later, or repeated."""
NAMES_MAX = 1_000
RATE_MAX = 1e9
DOING = "while doing "
"""How the note of a worker that is doing a piece begins."""

WorkSize = Annotated[int, Whole(0, SIZE_MAX)]
WorkName = Annotated[str, Length(NAME_MAX, is_name=True)]
Pieces = Annotated[tuple[WorkSize, ...], Length(BOUNDS_MAX)]


class WorkClaim(Struct, frozen=True):
    """The pieces of one name that a node holds, and those that it has confirmed."""

    name: WorkName
    size: WorkSize
    """The number of items."""
    grain: WorkSize
    """The number of items in a piece; the last one may have fewer."""
    confirmed: Pieces = ()
    """Since the last report on this stream. In the first one of a name: by its own workers in all
    rounds, and all below ``WorkGrant.confirmed_to``."""
    held: Pieces = ()
    """Granted to this node, and not confirmed yet."""

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return -(-self.size // self.grain)

    def difference(self, other: "WorkClaim") -> str:
        """Return why another claim of this name does not fit; empty if it does."""
        if (self.size, self.grain) == (other.size, other.grain):
            return ""
        return (
            f"invalid size {other.size} and grain {other.grain} for shared_work({self.name!r}): "
            f"expected size {self.size} and grain {self.grain}, as in other calls in this job"
        )

    def note(self, piece: int) -> str:
        """Return which items a worker is doing, as the note of its failure."""
        first, last = piece * self.grain, min(self.size, (piece + 1) * self.grain) - 1
        items = f"items {first} to {last}" if last > first else f"item {first}"
        return f"{DOING}{items} of {self.name!r}"


class WorkReport(RoomMessage, frozen=True):
    """Pieces of this node that are confirmed, and a request for more if workers are idle."""

    round: Count
    number: Count
    """Grows with each report of an agent; the answer has it."""
    claim: WorkClaim
    rate: Annotated[float, Real(RATE_MAX)]
    """The pieces that this node's workers confirm per second; 0: not known yet."""
    idle: Workers
    """The number of workers that wait for a piece; 0: this is not a request."""


class WorkGrant(RoomMessage, frozen=True):
    """The answer to a request: pieces for this node's workers."""

    number: Count
    """Of the report; a grant for an earlier one has been taken back by then."""
    name: WorkName
    pieces: Pieces
    """Empty: all are confirmed, or the request is refused."""
    confirmed_to: WorkSize
    """All pieces below this one are confirmed."""
    batch_s: Annotated[float, Real(RATE_MAX)] = 1.0
    """How long the pieces that a node has at a time shall last, in seconds."""
    refusal: LongText = ""
    """Why the name cannot be shared; empty if it can."""
