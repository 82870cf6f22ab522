"""What the agent has the saver do, and what it answers: both as JSON between them."""

from collections.abc import Mapping
from typing import Any

from ...values import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's file of a checkpoint, in a buffer that comes with the order."""

    rank: int
    data_bytes: int
    layout_bytes: int
    """As in the snapshot's page."""


@dataclass(frozen=True, slots=True)
class Order:
    """Write a checkpoint."""

    folder: str
    step: int
    keep: int
    """How many checkpoints stay."""
    attempt: str
    """Tells writers of the same step apart; the same for those that write one together."""
    shares: tuple[Share, ...]
    """Those of this node, by rank; what is behind that of rank 0 has the metadata."""
    ranks: int
    """Of how many ranks a checkpoint has files; savers of other nodes write the others."""
    unless_newer: bool = False
    """Nothing is to be done where there is one as new or newer."""
    pages: int = 0
    """How many pages come behind the buffers: there it is noted that the storage gets on."""
    given_up: str = ""
    """Why this node's part does not come: nothing but that is to be told to the others."""

    @property
    def is_whole(self) -> bool:
        """Whether this node has all shares."""
        return len(self.shares) == self.ranks

    @property
    def is_first(self) -> bool:
        """Whether this node has the share of rank 0, and makes the checkpoint visible."""
        return self.shares[0].rank == 0

    def fields(self) -> dict[str, object]:
        """Return it for JSON."""
        shares = [[share.rank, share.data_bytes, share.layout_bytes] for share in self.shares]
        return {
            "folder": self.folder,
            "step": self.step,
            "keep": self.keep,
            "attempt": self.attempt,
            "shares": shares,
            "ranks": self.ranks,
            "unless_newer": self.unless_newer,
            "pages": self.pages,
            "given_up": self.given_up,
        }

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "Order":
        """Return the order of what ``fields`` returned."""
        shares = tuple(Share(*share) for share in fields["shares"])
        return Order(**{**fields, "shares": shares})


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a checkpoint, or of a node's part of it."""

    words: str
    """Why it was not written; empty: it is complete, or this node has done what it had to."""
    path: str = ""
    """Where it is."""
    bytes: int = 0
    """Of all its files; 0: there was one already, or another node makes it visible."""
    seconds: float = 0.0

    def fields(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "words": self.words,
            "path": self.path,
            "bytes": self.bytes,
            "seconds": self.seconds,
        }
