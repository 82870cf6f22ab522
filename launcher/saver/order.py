"""The messages between agent and saver."""

from msgspec import Struct

from ...training.worker import snapshot_page as page


class WriteOrder(Struct, frozen=True):
    """An order to write a checkpoint, or the shards of it that this node holds."""

    destination: page.Destination
    entries: tuple[page.Entry, ...]
    """Entries of the shards of this node, by rank: one replicated shard, or shards of some or all
    ranks. Their buffers are sent with the order. The layout of rank 0's shard includes the
    metadata."""
    attempt: str
    """Distinguishes writers of the same step; the same on all nodes that write it together."""
    job: str = ""
    unless_newer: bool = False
    """Write nothing if there is a checkpoint of this step or a newer one."""
    pages: int = 0
    """Number of pages sent after the buffers, in which the saver counts progress."""
    given_up: str = ""
    """If not empty, write nothing and report this failure to the other nodes."""

    @property
    def step(self) -> int:
        """Completed steps."""
        return self.entries[0].step

    @property
    def ranks(self) -> int:
        """Number of files of the checkpoint, including files of other nodes."""
        first = self.entries[0]
        return 1 if first.is_replicated else first.world_size

    @property
    def is_whole(self) -> bool:
        """Whether this node has all shards."""
        return len(self.entries) == self.ranks

    @property
    def is_first(self) -> bool:
        """Whether this node has the shard of rank 0, and makes the checkpoint visible."""
        return file_rank(self.entries[0]) == 0


def file_rank(entry: page.Entry) -> int:
    """Return the rank in the name of a shard's file: 0 for a replicated shard."""
    return 0 if entry.is_replicated else entry.rank


class WriteResult(Struct, frozen=True):
    """The result of an order."""

    error: str
    """Why it failed; empty if the checkpoint is complete, or this node's shards are written."""
    path: str = ""
    bytes: int = 0
    """Size of all files; 0 if nothing was written, or another node makes it visible."""
    seconds: float = 0.0
    warning: str = ""
    """Why an old checkpoint could not be removed; empty if all were removed."""
