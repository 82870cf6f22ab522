"""The memory in which a worker leaves its snapshots: it outlives the worker."""

import mmap
import os

from ...rendezvous.protocol.offer import STEP_MAX, Snapshot
from ...training.worker import snapshot_page as page
from ..saver.saves import HeldShare

NO_WORKER = -1
"""In the place of a local rank: no worker asks for it."""


class RankMemory:
    """The page and the buffers of one rank."""

    def __init__(self) -> None:
        """Make them.

        Raises:
            OSError: there is no descriptor, or no memory.
        """
        self.held = 0
        """The buffers that the saver reads, a bit for each."""
        self.fds: list[int] = []
        try:
            for _ in range(1 + page.BUFFERS):
                self.fds.append(os.memfd_create("ft-run-snapshot"))
            os.ftruncate(self.fds[0], page.PAGE_BYTES)
            self._map = mmap.mmap(self.fds[0], page.PAGE_BYTES)
        except OSError:
            self._close_files()
            raise
        self._page = memoryview(self._map)

    def shares(self, local_rank: int) -> set[Snapshot]:
        """Return what the worker has left; of which world, its rank and place say."""
        return {
            Snapshot(one.step, one.world_size, one.rank - local_rank, one.is_replicated)
            for one in self.entries()
            if one.rank >= local_rank
        }

    @property
    def place(self) -> page.Place | None:
        """Where checkpoints are to be written; None: the saver writes none."""
        return page.read_place(self._page)

    def share(self, step: int, local_rank: int) -> HeldShare | None:
        """Return what the worker has left of a step; None: nothing."""
        return next(iter(self.all_shares(step, local_rank)), None)

    def all_shares(self, step: int, local_rank: int = NO_WORKER) -> list[HeldShare]:
        """Return all that is here of a step, to be saved.

        Args:
            step: how many steps were done.
            local_rank: of the worker that asks for it.
        """
        entries = [(index, page.read(self._page, index)) for index in range(page.BUFFERS)]
        return [
            HeldShare(local_rank, index, self.fds[1 + index], entry, self.fds[0])
            for index, entry in entries
            if entry is not None and entry.step == step
        ]

    def entries(self) -> list[page.Entry]:
        """Return what the buffers hold."""
        entries = (page.read(self._page, index) for index in range(page.BUFFERS))
        return [one for one in entries if one is not None and one.step <= STEP_MAX]

    def keep(self, step: int | None) -> None:
        """Forget all steps but one."""
        for index in range(page.BUFFERS):
            entry = page.read(self._page, index)
            if entry is not None and entry.step != step:
                page.write(self._page, index, None)

    def close(self) -> None:
        """Give the memory back."""
        self._page.release()
        self._map.close()
        self._close_files()

    def _close_files(self) -> None:
        for fd in self.fds:
            os.close(fd)
