"""What the agent has the saver do, and what it answers: both as JSON between them."""

from collections.abc import Mapping
from typing import Any

from ...values import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A file of a checkpoint, in a buffer that comes with the order."""

    file: str
    """Its name."""
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
    """Tells this writer from others of the same step."""
    shares: tuple[Share, ...]
    """All of them, by rank; what is behind the first one has the metadata."""
    unless_newer: bool = False
    """Nothing is to be done where there is one as new or newer."""

    def fields(self) -> dict[str, object]:
        """Return it for JSON."""
        shares = [[share.file, share.data_bytes, share.layout_bytes] for share in self.shares]
        return {
            "folder": self.folder,
            "step": self.step,
            "keep": self.keep,
            "attempt": self.attempt,
            "shares": shares,
            "unless_newer": self.unless_newer,
        }

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "Order":
        """Return the order of what ``fields`` returned."""
        shares = tuple(Share(*share) for share in fields["shares"])
        return Order(**{**fields, "shares": shares})


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a checkpoint."""

    words: str
    """Why it was not written; empty: it is complete."""
    path: str = ""
    """Where it is."""
    bytes: int = 0
    """0: there was one already."""
    seconds: float = 0.0

    def fields(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "words": self.words,
            "path": self.path,
            "bytes": self.bytes,
            "seconds": self.seconds,
        }
