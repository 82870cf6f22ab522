"""A rank's snapshots in buffers that outlive the worker; one is always complete."""

import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from ..worker import snapshot_page as page
from ..worker.snapshot_memory import Memory
from .checkpoint_files import (
    Item,
    LayoutMismatchError,
    Offsets,
    first_items,
    metadata_of,
    offsets_of,
    plan_of,
)
from .copying import local
from .kinds import SAME, Kinds
from .layout import Description, digest
from .memory_files import available
from .snapshot_file import SnapshotFile
from .storage import one_line
from .values import has_shards

Plan = tuple[SavePlan, Offsets, str]
"""A rank's plan, the offsets of its items, and the digest of the layout."""
_MARGIN = 1.1
"""Allowance for the rest of the files, and for memory that training allocates in the meantime."""
_CHANGED = "weights or optimizer state were changed before the optimizer's next step"


class Snapshots:
    """The snapshots of this process's rank. A step is a number of completed steps."""

    def __init__(
        self, memory: Memory, rank: int, world_size: int, owner: int, kinds: Kinds = SAME
    ) -> None:
        """Use memory from the agent. Entries of other owners stay until they are the oldest."""
        self._kinds = kinds
        self._rank, self._world_size = rank, world_size
        self.owner = owner
        self._memory = memory
        self._page = memoryview(mmap.mmap(memory.page_fd, page.PAGE_BYTES))
        self._files = [SnapshotFile(fd) for fd in memory.buffer_fds]
        self.saver = memory.saver
        """Writes checkpoints from the buffers; None if there is no saver."""
        if self.saver is not None:
            self.saver.page = self._page
        self.beside: list[Snapshots] = []
        """Replicas of other ranks' shards, which need memory too if the state is sharded."""
        self._receiving = 0
        self._last: SnapshotFile | None = None
        """File of the last snapshot, if it is sharded."""
        self.is_sharded = False
        """Whether the state of the last snapshot is, even if this rank could not take it."""
        self._planned: tuple[Item, ...] = ()
        """Layout for which all ranks made their plans."""
        self._description = Description()
        """Description of the files of all ranks; only on rank 0."""
        self.reader: threading.Thread | None = None
        """Thread that sends one of the files to other nodes."""
        self.generation = 0
        """Generation of the newest snapshot; the ranks agree on it at the start."""
        self.see_others()

    def see_others(self) -> None:
        """Make the next snapshot newer than all existing ones, of any owner."""
        present = (entry.generation for entry in self._entries if entry is not None)
        self.generation = max((self.generation, *present))

    @property
    def resume_step(self) -> int:
        """Step from which all ranks resume; -1 if none, or if it belongs to another owner."""
        is_of_it = self._memory.resume_owner in (0, self.owner)
        return self._memory.resume_step if is_of_it else -1

    def end_resuming(self) -> None:
        """Mark the step to resume from as used: later Checkpointers of this owner do not get it."""
        if self.resume_step >= 0:
            self._memory.resume_step = -1

    @property
    def other_directory(self) -> str:
        """Directory of the state to resume from if it belongs to another owner; else empty."""
        owner = self._memory.resume_owner
        if self._memory.resume_step < 0 or owner in (0, self.owner):
            return ""
        found = page.read_destinations(self._page).get(owner)
        return found.folder if found is not None else ""

    @property
    def _entries(self) -> list[page.Entry | None]:
        return [page.read(self._page, index) for index in range(len(self._files))]

    def _of(self, step: int) -> Iterator[tuple[int, page.Entry]]:
        return ((index, entry) for index, entry in self._own_entries() if entry.step == step)

    def _own_entries(self) -> Iterator[tuple[int, page.Entry]]:
        for index, entry in enumerate(self._entries):
            if entry is not None and entry.owner == self.owner:
                yield index, entry

    def write(
        self,
        step: int,
        state: Callable[[], Mapping[str, Any]],
        flat: Mapping[str, Any],
        late: AbstractSet[str] = frozenset(),
        keep: AbstractSet[int] = frozenset(),
    ) -> "Callable[[], str] | None":
        """Take a snapshot; the previous one stays valid in any case.

        Args:
            state: returns the nested state dict of this rank; called for a new layout only.
            flat: the flat state dict.
            late: keys of tensors that can be copied in the background.
            keep: additional steps whose snapshots must be kept.

        Returns:
            A function that completes the snapshot, in any thread, and returns an error or an empty
            string. None if the snapshot is complete.

        Raises:
            OSError: If there is not enough memory.
            RuntimeError: If torch cannot copy the state.
            Exception: If a value cannot be pickled.
        """
        index, newest = self._next(keep)
        file, other = self._files[index], self._files[newest]
        self.is_sharded = self._has_shards(flat)
        is_replicated = not self.is_sharded
        page.write(self._page, index, None)
        if other is not file:
            other.pin()  # it is complete, whether restored or written, and will be written next
        copy = None
        try:
            values = file.values_of(flat)
            if values is None and other.values_of(flat) is not None:
                file.copy(other)
                values = file.values_of(flat)
            if values is None:
                raise LayoutMismatchError
            self._describe(file)
            copy = file.write(values, late)
        except LayoutMismatchError:
            self._check_room(flat)
            nested, saved = self._by_owner(state())
            file.lay_out(nested, is_whole=is_replicated, saved=None if is_replicated else saved)
            self._describe(file)
        self._last = None if is_replicated else file
        if copy is None:
            self._now_holds(index, step, is_replicated=is_replicated)
            return None
        begun = copy

        def complete() -> str:
            try:
                if not begun.run():
                    return _CHANGED
            except RuntimeError as error:  # from the GPU or its driver
                return one_line(error)
            self._now_holds(index, step, is_replicated=is_replicated)
            return ""

        return complete

    def overwrite(self, step: int, key: str, value: torch.Tensor) -> bool:
        """Replace a tensor in the snapshot of a step; return whether it has room for it."""
        file = self.written(step)
        return file is not None and file.overwrite(key, value)

    def forget(self, step: int) -> None:
        """Discard the snapshot of a step, which some ranks do not have."""
        for index, _ in self._of(step):
            page.write(self._page, index, None)

    def _next(self, keep: AbstractSet[int] = frozenset()) -> tuple[int, int]:
        """Return the buffers of the next and of the newest snapshot."""
        entries, buffers = self._entries, range(len(self._files))
        newest = max(buffers, key=lambda i: _generation(entries[i]))
        held = {i for i in buffers if self._is_held(i)}
        held |= {index for step in keep for index, _ in self._of(step)}
        free = [i for i in buffers if i != newest and i not in held]
        # Prefer a buffer with memory, then an invalid one, then the oldest.
        index = min(free, key=lambda i: (not self._size(i), _generation(entries[i])))
        if not held:
            for spare in free:
                if spare != index and self._size(spare):
                    page.write(self._page, spare, None)
                    self._files[spare].clear()
        elif newest not in held and not self._size(index) and not self._has_room_for(newest):
            index = newest  # the saver's buffer stays complete if this copy fails
        return index, newest

    def _has_room_for(self, index: int) -> bool:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return ranks * self._size(index) * _MARGIN <= available()

    def _is_held(self, index: int) -> bool:
        return self.saver is not None and self.saver.is_held(index)

    def _size(self, index: int) -> int:
        return os.fstat(self._memory.buffer_fds[index]).st_size

    def _check_room(self, flat: Mapping[str, Any]) -> None:
        """Raise ``OSError`` unless there is memory for all buffers of all ranks of this node."""
        beside = self.beside if self._has_shards(flat) else []
        copies = 2 + (2 + 2 * len(beside) if beside else 0)
        tensors = [local(value) for value in flat.values()]
        size = sum(value.nbytes for value in tensors if isinstance(value, torch.Tensor))
        buffers = [fd for one in (self, *beside) for fd in one._memory.buffer_fds]
        there = sum(os.fstat(fd).st_blocks * 512 for fd in buffers)
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        needed, left = ranks * max(0, int(copies * size * _MARGIN) - there), available()
        if needed > left:
            raise OSError(
                errno.ENOMEM,
                f"not enough memory for {copies} copies of the state of {ranks} rank(s): "
                f"{needed / 1e9:.2f} GB more needed, {left / 1e9:.2f} GB available",
            )

    def written(self, step: int) -> SnapshotFile | None:
        """Return the file of a step that this process has written; None if there is none."""
        files = (self._files[index] for index, _ in self._of(step))
        return next((file for file in files if file.data_bytes), None)

    def ranks_of(self, step: int) -> list[int]:
        """Return the ranks whose shards of a step are in this memory."""
        return [one.rank for _, one in self._of(step) if one.world_size == self._world_size]

    def find(self, step: int, rank: int | None = None) -> SnapshotFile | None:
        """Return the file of a step, of this rank or another; None if it is not in this memory."""
        wanted = (self._world_size, self._rank if rank is None else rank)
        for index, entry in self._of(step):
            if entry.is_replicated or (entry.world_size, entry.rank) == wanted:
                self._files[index].open(entry.data_bytes, entry.layout_bytes)
                return self._files[index]
        return None

    def has(self, step: int) -> bool:
        """Return whether this rank has a snapshot of a step."""
        return any(True for _ in self._of(step))

    def is_replicated(self, step: int) -> bool:
        """Return whether the snapshot of a step is the state of all ranks."""
        return any(entry.is_replicated for _, entry in self._of(step))

    def receive(
        self, data_bytes: int, layout_bytes: int, keep: AbstractSet[int] = frozenset()
    ) -> SnapshotFile:
        """Return a file to receive another rank's data into; call ``received`` afterwards."""
        index, _ = self._next(keep)
        self._receiving = index
        page.write(self._page, index, None)
        self._files[index].bytes_to_receive(data_bytes, layout_bytes)
        return self._files[index]

    def received(self, step: int, *, rank: int, is_replicated: bool, generation: int) -> None:
        """Mark the file of ``receive`` as complete, with the generation of its origin."""
        self.generation = max(self.generation, generation)
        self._write_entry(self._receiving, generation, step, rank=rank, is_replicated=is_replicated)

    def generation_of(self, step: int) -> int:
        """Return the generation of the snapshot of a step; 0 if there is none."""
        return max((entry.generation for _, entry in self._of(step)), default=0)

    def forget_others(self) -> None:
        """Discard shards of other ranks, which now have them."""
        for index, entry in self._own_entries():
            if not entry.is_replicated and entry.rank != self._rank:
                page.write(self._page, index, None)

    # --- checkpoints -----------------------------------------------------------------------------

    def save_to(self, destination: page.Destination) -> bool:
        """Set where the saver writes checkpoints; return whether there is a saver."""
        if self.saver is None:
            return False
        return page.write_destination(self._page, self.owner, destination)

    def save(self, step: int) -> bool:
        """Request a checkpoint of a step from the saver; return whether that succeeded."""
        for index, _ in self._of(step):
            return self.saver is not None and self.saver.save(index, step, self.owner)
        return False

    @property
    def lacks_plan(self) -> bool:
        """Whether the last snapshot is sharded and its layout differs from the plans."""
        return self._last is not None and self._last.items != self._planned

    def plan(self, state: Mapping[str, Any], flat: Mapping[str, Any]) -> Plan | None:
        """Return this rank's plan for rank 0; None if the last snapshot has a different layout."""
        if self._last is None:
            return None
        self._planned, self._description = self._last.items, Description()
        plan, keys = plan_of(self._by_owner(state)[0], self._kinds)
        if keys != [item.key for item in self._planned] or self._last.values_of(flat) is None:
            return None
        plan = first_items(plan, self._last.description.saved)
        return plan, offsets_of(plan, self._planned[: len(plan.items)]), digest(self._planned)

    def _by_owner(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], AbstractSet[str] | None]:
        """Return a nested state dict, and the objects that a checkpoint needs from this rank.

        These objects come first: local ones, and ones of which this rank has a part. On rank 0 they
        are all (None), because a checkpoint contains objects that are the same on all ranks once.
        """
        mine = {n: v for n, v in state.items() if n in self._kinds.local or has_shards(v)}
        return {**mine, **state}, None if self._rank == 0 else mine.keys()

    def use_plans(self, plans: list[Plan | None], step: int) -> None:
        """Build the metadata of all shards on rank 0, for a complete step and later ones.

        ``plans`` are those of all ranks; empty on other ranks than 0.
        """
        known = [plan for plan in plans if plan is not None]
        if not known or len(known) < len(plans):
            return
        metadata = metadata_of([plan for plan, _, _ in known], [places for _, places, _ in known])
        self._description = Description(metadata, tuple(one for _, _, one in known))
        for index, _ in self._of(step):
            if self._files[index] is self._last and not self._is_held(index):
                page.write(self._page, index, None)
                self._describe(self._files[index])
                self._now_holds(index, step, is_replicated=False)

    def is_planned(self, step: int) -> bool:
        """Return whether the layout of a sharded snapshot matches the plans of all ranks."""
        file = self.written(step)
        if file is None or file.items != self._planned:
            return False
        return self._rank > 0 or bool(self._description.metadata)

    def _describe(self, file: SnapshotFile) -> None:
        is_meant = bool(self._description.metadata) and file.items == self._planned
        if is_meant and file.description != self._description:
            file.describe(self._description)

    def clear(self) -> None:
        """Discard all snapshots of this owner: the ranks resume from another state."""
        for index, _ in self._own_entries():
            page.write(self._page, index, None)

    def let_go(self) -> None:
        """Wait until nothing reads the buffers, and forget their content before others write it."""
        if self.reader is not None:
            self.reader.join()
        for file in self._files:
            file.drop()
        self._last = None
        for one in self.beside:
            one.let_go()

    def close(self) -> None:
        """Take no more snapshots; the agent keeps the content."""
        for file in self._files:
            file.unpin()  # a replica may still be sent from it, which keeps it mapped
        self._files, self._last = [], None

    def _has_shards(self, flat: Mapping[str, Any]) -> bool:
        """Return whether the state is not replicated: it has local objects or shards."""
        return self._kinds.has_local or any(isinstance(value, DTensor) for value in flat.values())

    def _now_holds(self, index: int, step: int, *, is_replicated: bool) -> None:
        self.generation += 1
        self._write_entry(
            index, self.generation, step, rank=self._rank, is_replicated=is_replicated
        )

    def _write_entry(
        self, index: int, generation: int, step: int, *, rank: int, is_replicated: bool
    ) -> None:
        file = self._files[index]
        entry = page.Entry(
            generation,
            self.owner,
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
