"""Memory for the snapshots of one rank; it survives the worker."""

import os

from ...rendezvous.protocol.offer import STEP_MAX, Snapshot
from ...training.worker import snapshot_page as page
from ..processes.shared_memory import shared_page
from ..saver.saves import HeldShard

NO_WORKER = -1
"""Value of a local rank if no worker has requested the checkpoint."""


class RankMemory:
    """The page and the buffers, as memfds; ``OSError`` if they cannot be created."""

    def __init__(self) -> None:
        self.held = 0
        """Buffers that the saver is reading, one bit each."""
        self.fds: list[int] = []
        try:
            page_fd, self._map = shared_page("ft-run-snapshot", page.PAGE_BYTES)
            self.fds.append(page_fd)
            for _ in range(page.BUFFERS):  # not sealed: the worker shrinks them to free memory
                self.fds.append(os.memfd_create("ft-run-snapshot"))
        except OSError:
            self._close_files()
            raise
        self._page = memoryview(self._map)

    def shards(self, local_rank: int) -> dict[Snapshot, int]:
        """Return the generations of a worker's snapshots, by snapshot without generation.

        Ranks are relative to ``local_rank``, so that they are equal for all workers of a node.
        """
        return {
            Snapshot(
                one.step, one.world_size, one.rank - local_rank, one.is_replicated, one.owner
            ): one.generation
            for _, one in self.entries()
            if one.rank >= local_rank
        }

    def destination(self, owner: int) -> page.Destination | None:
        """Return the destination of an owner's checkpoints; None if the saver writes none."""
        return page.read_destinations(self._page).get(owner)

    def shard(self, owner: int, step: int, local_rank: int) -> HeldShard | None:
        """Return the worker's shard of an owner's step; None if there is none."""
        return next(iter(self.all_shards(owner, step, local_rank)), None)

    def all_shards(self, owner: int, step: int, local_rank: int = NO_WORKER) -> list[HeldShard]:
        """Return all shards of a step; ``owner`` is 0 if unknown."""
        return [
            HeldShard(local_rank, index, self.fds[1 + index], entry, self.fds[0])
            for index, entry in self.entries()
            if entry.step == step and owner in (0, entry.owner)
        ]

    def entries(self) -> list[tuple[int, page.Entry]]:
        """Return the valid entries, with the numbers of their buffers."""
        entries = [(index, page.read(self._page, index)) for index in range(page.BUFFERS)]
        return [(n, one) for n, one in entries if one is not None and one.step <= STEP_MAX]

    def keep(self, owner: int, step: int | None) -> None:
        """Discard all snapshots except the ones of a step, or all if it is None.

        ``owner`` is 0 if unknown.
        """
        for index, entry in self.entries():
            if entry.step != step or owner not in (0, entry.owner):
                page.write(self._page, index, None)

    def close(self) -> None:
        """Free the memory."""
        self._page.release()
        self._map.close()
        self._close_files()

    def _close_files(self) -> None:
        for fd in self.fds:
            os.close(fd)
