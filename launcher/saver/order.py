"""The messages between agent and saver; ``events.record.json_value`` makes JSON of them."""

from collections.abc import Mapping
from typing import Any

from ...values import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's file of a checkpoint, in a buffer that is sent with the order."""

    rank: int
    data_bytes: int
    layout_bytes: int
    """Lengths as in the entry of the snapshot page."""


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """An order to write a checkpoint, or the shards that this node holds of it."""

    folder: str
    step: int
    keep: int
    """Number of checkpoints to keep."""
    attempt: str
    """Distinguishes writers of the same step; the same on all nodes that write it together."""
    shards: tuple[Shard, ...]
    """The shards of this node, by rank; the layout of rank 0's shard includes the metadata."""
    ranks: int
    """Number of files of the checkpoint, including those of other nodes."""
    unless_newer: bool = False
    """Write nothing if there is a checkpoint of this step or a newer one."""
    pages: int = 0
    """Number of pages sent after the buffers, in which the saver counts progress."""
    given_up: str = ""
    """If not empty, write nothing and report this failure to the other nodes."""

    @property
    def is_whole(self) -> bool:
        """Whether this node has all shards."""
        return len(self.shards) == self.ranks

    @property
    def is_first(self) -> bool:
        """Whether this node has the shard of rank 0, and makes the checkpoint visible."""
        return self.shards[0].rank == 0

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "WriteOrder":
        """Return the order with these fields, which are values of JSON."""
        shards = tuple(Shard(**shard) for shard in fields["shards"])
        return WriteOrder(**{**fields, "shards": shards})


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of an order."""

    error: str
    """Why it failed; empty: the checkpoint is complete, or this node's shards are written."""
    path: str = ""
    """The path of the checkpoint."""
    bytes: int = 0
    """Size of all files; 0: nothing was written, or another node makes it visible."""
    seconds: float = 0.0
