"""Messages of nodes and the master for ``shared_work``: pieces of work that no step waits for.

Pieces are numbered from 0. A set of them is sent as the bounds of its intervals
(``intervals.Intervals``).

A node reports, and the master grants. Directly after ``Attend``, which contains their number, a
node sends reports of all names: its claim. Pieces that the workers of a round confirmed before
they died are reported before ``Stopped``. The note of a worker's ``Failure`` names its piece.
"""

from typing import Annotated

from msgspec import Struct

from ..protocol.bounds import Count, Length, LongText, Real, Whole, Workers
from ..protocol.messages import RoomMessage

NAME_MAX = 128
SIZE_MAX = 1 << 53
BOUNDS_MAX = 20_000
"""Per message: if confirmed and unconfirmed pieces alternate more often, the rest is claimed later,
or repeated."""
NAMES_MAX = 1_000
RATE_MAX = 1e9
DOING = "while doing "
"""Start of the note of a worker that is doing a piece."""

WorkSize = Annotated[int, Whole(0, SIZE_MAX)]
WorkName = Annotated[str, Length(NAME_MAX, is_name=True)]
Pieces = Annotated[tuple[WorkSize, ...], Length(BOUNDS_MAX)]


class WorkClaim(Struct, frozen=True):
    """The pieces of one name that a node holds or has confirmed."""

    name: WorkName
    size: WorkSize
    """Number of items."""
    grain: WorkSize
    """Number of items per piece; the last one may have fewer."""
    confirmed: Pieces = ()
    """Pieces confirmed since the last report on this stream. In its first report: pieces confirmed
    by the node's own workers in all rounds, and all below ``WorkGrant.confirmed_to``."""
    held: Pieces = ()
    """Pieces granted to this node, and not confirmed yet."""

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return -(-self.size // self.grain)

    def difference(self, other: "WorkClaim") -> str:
        """Return why another claim of this name does not match; empty if it does."""
        if (self.size, self.grain) == (other.size, other.grain):
            return ""
        return (
            f"invalid size {other.size} and grain {other.grain} for shared_work({self.name!r}): "
            f"expected size {self.size} and grain {self.grain}, as in other calls in this job"
        )

    def note(self, piece: int) -> str:
        """Return the note of a worker's failure, which names the items that it was doing."""
        first, last = piece * self.grain, min(self.size, (piece + 1) * self.grain) - 1
        items = f"items {first} to {last}" if last > first else f"item {first}"
        return f"{DOING}{items} of {self.name!r}"


class WorkReport(RoomMessage, frozen=True):
    """Confirmed pieces of this node, and a request for more if workers are idle."""

    round: Count
    number: Count
    """Increases with each report of an agent; the grant repeats it."""
    claim: WorkClaim
    rate: Annotated[float, Real(RATE_MAX)]
    """Pieces that this node's workers confirm per second; 0 if unknown."""
    idle: Workers
    """Number of workers that wait for a piece; 0 if this is not a request."""
    others: Annotated[tuple[WorkClaim, ...], Length(NAMES_MAX)] = ()
    """Claims of more names, of which this node holds nothing: most names are complete."""


class WorkGrant(RoomMessage, frozen=True):
    """The answer to a request: pieces for this node's workers."""

    number: Count
    """Number of the report; a grant for an earlier report is outdated."""
    name: WorkName
    pieces: Pieces
    """Empty if all are confirmed, or the request is refused."""
    confirmed_to: WorkSize
    """All pieces below this one are confirmed."""
    batch_s: Annotated[float, Real(RATE_MAX)] = 1.0
    """How long the pieces that a node has at a time should last, in seconds."""
    refusal: LongText = ""
    """Why the name cannot be shared; empty if it can."""
