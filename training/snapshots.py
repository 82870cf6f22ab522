"""A rank's snapshots: buffers that outlive the worker, of which one is always complete."""

import errno
import mmap
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from . import snapshot_page as page
from .memory_left import available
from .snapshot_file import MisfitError, SnapshotFile, local
from .snapshot_memory import Memory

_MARGIN = 1.1
"""What the files have beside the tensors, and what training needs meanwhile."""


class Snapshots:
    """The snapshots of this process's rank."""

    def __init__(self, memory: Memory, rank: int, world_size: int) -> None:
        """Use the memory that the agent holds.

        Args:
            memory: from ``snapshot_memory.ask``; its descriptors become this object's.
            rank: of this process.
            world_size: of the job, in ranks.
        """
        self._rank, self._world_size = rank, world_size
        self.resume_step = memory.resume_step
        """The step that all ranks resume from; -1: none."""
        self._fds = (memory.page_fd, *memory.buffer_fds)
        self._page = memoryview(mmap.mmap(memory.page_fd, page.PAGE_BYTES))
        self._files = [SnapshotFile(fd) for fd in memory.buffer_fds]
        self._receiving = 0
        self._generation = max((entry.generation for entry in self._entries if entry), default=0)

    @property
    def _entries(self) -> list[page.Entry | None]:
        return [page.read(self._page, index) for index in range(len(self._files))]

    def write(
        self,
        step: int,
        state: Mapping[str, Any],
        flat: Mapping[str, Any],
        keep: frozenset[int] = frozenset(),
    ) -> None:
        """Take a snapshot; the one before stays, whatever happens.

        Args:
            step: how many steps are done.
            state: the nested state dict of this rank.
            flat: the same, flattened as DCP does it.
            keep: steps whose snapshots stay too, as long as there are buffers.

        Raises:
            OSError: there is no memory for it.
            Exception: a value cannot be pickled.
        """
        index, newest = self._free(keep), self._newest()
        file, other = self._files[index], self._files[newest]
        page.write(self._page, index, None)
        try:
            if not file.fits(flat) and other.fits(flat):
                file.copy(other)
            if not file.fits(flat):
                raise MisfitError
            file.write(flat)
        except MisfitError:
            self._check_room(flat)
            file.lay_out(state)
        self._now_holds(index, step, rank=self._rank, is_replicated=not _has_shards(flat))

    def _check_room(self, flat: Mapping[str, Any]) -> None:
        """Look whether both buffers of all ranks of this node can be made for a state.

        Raises:
            OSError: there is not enough memory.
        """
        tensors = [local(value) for value in flat.values()]
        size = sum(value.nbytes for value in tensors if isinstance(value, torch.Tensor))
        there = sum(os.fstat(fd).st_blocks * 512 for fd in self._fds[1:])
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        needed, left = ranks * max(0, int(2 * size * _MARGIN) - there), available()
        if needed > left:
            raise OSError(
                errno.ENOMEM,
                f"two copies of the state of {ranks} rank(s) here take {needed / 1e9:.2f} GB "
                f"more, and {left / 1e9:.2f} GB of memory are available",
            )

    def _newest(self) -> int:
        entries = self._entries
        return max(range(len(self._files)), key=lambda i: _generation(entries[i]))

    def _free(self, keep: frozenset[int]) -> int:
        """Return the buffer to be written to: one that has memory rather than a new one."""
        entries, newest = self._entries, self._newest()

        def reluctance(index: int) -> tuple[bool, bool, int]:
            entry = entries[index]
            is_new = not os.fstat(self._fds[1 + index]).st_size
            return (entry is not None and entry.step in keep, is_new, _generation(entry))

        others = [i for i in range(len(self._files)) if i != newest or entries[i] is None]
        # While there is one snapshot there are to be two.
        return min(others, key=reluctance)

    def written(self, step: int) -> SnapshotFile | None:
        """Return what this process has written of a step; None: nothing."""
        for file, entry in zip(self._files, self._entries, strict=True):
            if entry is not None and entry.step == step and file.data_bytes:
                return file
        return None

    def ranks_of(self, step: int) -> list[int]:
        """Return whose shares of a step are here."""
        entries = (entry for entry in self._entries if entry is not None and entry.step == step)
        return [one.rank for one in entries if one.world_size == self._world_size]

    def find(self, step: int, rank: int | None = None) -> SnapshotFile | None:
        """Return a share of the state of a step, of this rank or another; None: it is not here."""
        wanted = (self._world_size, self._rank if rank is None else rank)
        for index, entry in enumerate(self._entries):
            if entry is None or entry.step != step:
                continue
            if entry.is_replicated or (entry.world_size, entry.rank) == wanted:
                self._files[index].open(entry.data_bytes, entry.layout_bytes)
                return self._files[index]
        return None

    def has(self, step: int) -> bool:
        """Return whether this rank has left its share of the state of a step."""
        return any(entry is not None and entry.step == step for entry in self._entries)

    def is_replicated(self, step: int) -> bool:
        """Return whether this rank's share of a step is the state of all ranks."""
        return any(e is not None and e.step == step and e.is_replicated for e in self._entries)

    def receive(
        self, data_bytes: int, layout_bytes: int, keep: frozenset[int] = frozenset()
    ) -> SnapshotFile:
        """Return a file to be filled with what another rank sends; ``received`` follows."""
        self._receiving = index = self._free(keep)
        page.write(self._page, index, None)
        self._files[index].bytes_to_receive(data_bytes, layout_bytes)
        return self._files[index]

    def received(self, step: int, *, rank: int, is_replicated: bool) -> None:
        """The file of ``receive`` is complete: the share of a rank, or what all ranks have."""
        self._now_holds(self._receiving, step, rank=rank, is_replicated=is_replicated)

    def forget_others(self) -> None:
        """Forget shares of other ranks: they have them now."""
        for index, entry in enumerate(self._entries):
            if entry is not None and not entry.is_replicated and entry.rank != self._rank:
                page.write(self._page, index, None)

    def clear(self) -> None:
        """Forget all snapshots: the ranks go on from another state."""
        for index in range(len(self._files)):
            page.write(self._page, index, None)

    def close(self) -> None:
        """Let go of the memory; what it holds stays."""
        for fd in self._fds:
            os.close(fd)
        self._fds, self._files = (), []

    def _now_holds(self, index: int, step: int, *, rank: int, is_replicated: bool) -> None:
        file = self._files[index]
        self._generation += 1
        entry = page.Entry(
            self._generation,
            step,
            self._world_size,
            rank,
            file.data_bytes,
            file.layout_bytes,
            is_replicated,
        )
        page.write(self._page, index, entry)


def _generation(entry: page.Entry | None) -> int:
    return entry.generation if entry is not None else -1


def _has_shards(flat: Mapping[str, Any]) -> bool:
    return any(isinstance(value, DTensor) for value in flat.values())
