"""A rank's checkpoint file (``__<rank>_0.distcp``) in memory.

It is written once like a file on storage (``checkpoint_files.py``). Later snapshots only copy the
bytes of the tensors to their offsets.
"""

import io
import os
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from .checkpoint_files import (
    Item,
    LayoutMismatchError,
    metadata_of,
    offsets_of,
    pad,
    serialized,
    with_data_start,
    write_values,
)
from .copying import Copies, LateCopy, copy_now, copy_source, local
from .layout import Description, packed, unpacked
from .memory_files import Registration, mapped, register
from .values import digest_of, pickled

_NOTHING = object()


class SnapshotFile:
    """The file in one buffer."""

    def __init__(self, fd: int) -> None:
        """``fd`` is a memory file, which the caller closes."""
        self._fd = fd
        self.items: tuple[Item, ...] = ()
        self.description = Description()
        """Data that turns this file, alone or with those of other ranks, into a checkpoint."""
        self._keys: tuple[str, ...] = ()
        self._views: list[torch.Tensor | None] = []
        self._pickles: list[bytes] = []
        """Pickles of the values that are not tensors, as last written; empty if unknown."""
        self._map: memoryview | None = None
        self._registration: Registration | None = None
        """Registration of the memory with the GPU."""
        self.data_bytes = 0
        self.layout_bytes = 0

    # --- reading ---------------------------------------------------------------------------------

    def open(self, data_bytes: int, layout_bytes: int) -> None:
        """Open a file that another process or rank has written."""
        self._map_all(data_bytes, layout_bytes, is_there=True)
        assert self._map is not None
        items, self.description = unpacked(bytes(self._map[data_bytes : data_bytes + layout_bytes]))
        self._use(
            [
                Item(tuple(path), start, length, dtype, tuple(shape), data_start)
                for path, start, length, dtype, shape, data_start in items
            ]
        )

    def read(self, index: int, *, is_trusted: bool = True) -> Any:
        """Return a tensor that shares the file's memory, or an object.

        Raises:
            pickle.UnpicklingError: If an untrusted value is more than plain data.
        """
        view, item = self._views[index], self.items[index]
        if item.dtype:
            return view
        assert self._map is not None
        data = io.BytesIO(self._map[item.start : item.start + item.length])
        return torch.load(data, weights_only=not is_trusted)

    def digests(self, names: Sequence[str]) -> list[int]:
        """Return a digest of each object's values as last written; large tensors are sampled."""
        found = dict.fromkeys(names, 0)
        for item, key, view, data in zip(
            self.items, self._keys, self._views, self._pickles, strict=True
        ):
            name = str(item.path[0])
            if name in found:
                mine = zlib.crc32(data) if view is None else digest_of([view], is_exact=False)
                found[name] = zlib.crc32(f"{key} {mine}".encode(), found[name])
        return list(found.values())

    # --- writing ---------------------------------------------------------------------------------

    def values_of(self, flat: Mapping[str, Any]) -> list[Any] | None:
        """Return the values of a flat state in the order of this file; None on a mismatch."""
        if len(flat) != len(self.items):
            return None
        found = []
        for key, view in zip(self._keys, self._views, strict=True):
            value = flat.get(key, _NOTHING)
            part = local(value)
            if value is _NOTHING or isinstance(part, torch.Tensor) != (view is not None):
                return None
            if view is not None and (part.shape != view.shape or part.dtype != view.dtype):
                return None
            found.append(value)
        return found

    def is_equal(self, flat: Mapping[str, Any], *, except_for: str) -> bool:
        """Return whether a flat state has the same bytes as this file, except for one object."""
        values = self.values_of(flat)
        return values is not None and all(
            pickled(value) == data if view is None else is_same_data(view, local(value))
            for item, value, view, data in zip(
                self.items, values, self._views, self._pickles, strict=True
            )
            if item.path[0] != except_for
        )

    def write(self, values: list[Any], late: AbstractSet[str] = frozenset()) -> "LateCopy | None":
        """Overwrite all values, which come from ``values_of``; return the copy to run, if any.

        ``late``: keys of tensors that can be copied in the background.

        Raises:
            LayoutMismatchError: If a value that is not a tensor does not fit its slot.
        """
        if self._registration is not None:
            self._registration.wait()
        now: Copies = []
        later: Copies = []
        for index, (key, view, value) in enumerate(
            zip(self._keys, self._views, values, strict=True)
        ):
            if view is None:
                self._write_object(index, value)
            elif view.numel():
                source = copy_source(value, is_left_alone=key in late)
                if source is None:
                    now.append((view, value))
                else:
                    later.append((view, source))
        copy = LateCopy(later) if later else None
        copy_now(now)
        return copy

    def _write_object(self, index: int, value: Any) -> None:
        data = pickled(value)
        if data == self._pickles[index]:
            return
        self._pickles[index] = b""
        item = self.items[index]
        assert self._map is not None
        self._map[item.start : item.start + item.length] = pad(serialized(value), item.length)
        self._pickles[index] = data

    def overwrite(self, key: str, value: torch.Tensor) -> bool:
        """Replace a tensor; return whether there is one with this key and shape."""
        view = self._views[self._keys.index(key)] if key in self._keys else None
        if view is None or view.shape != value.shape:
            return False
        view.copy_(value)
        return True

    def lay_out(
        self,
        state: Mapping[str, Any],
        *,
        is_whole: bool = True,
        saved: Container[str] | None = None,
    ) -> None:
        """Write a new file for a nested state dict, including all values.

        Args:
            is_whole: whether the state is the same on all ranks: adds the metadata for this file
                alone.
            saved: names of the objects, the first ones in the state, that a checkpoint needs from
                this file; None for all.

        Raises:
            OSError: If there is not enough memory.
        """
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(state), is_coordinator=True)
        plan = planner.create_local_plan()
        self._forget()
        os.ftruncate(self._fd, 0)
        least = sum(local(value).nbytes for value in _tensors(planner.state_dict.values()))
        room = memoryview(b"")
        if least:
            os.ftruncate(self._fd, least)
            room = mapped(self._fd, least)  # huge pages must be allocated before writing
        os.lseek(self._fd, 0, os.SEEK_SET)
        with open(os.dup(self._fd), "w+b") as file:
            items = write_values(planner, plan, file, room=room)
            size = file.tell()
            items = [with_data_start(item, file) for item in items]
            file.seek(size)
            if saved is not None:
                count = sum(item.path[0] in saved for item in items)
                self.description = Description(saved=count)
            if is_whole:
                self.description = Description(metadata_of([plan], [offsets_of(plan, items)]))
            layout = packed(items, self.description)
            file.write(layout)
        self._map_all(size, len(layout))
        self._use(items)
        copies: Copies = []
        for index, (write, view) in enumerate(zip(plan.items, self._views, strict=True)):
            value = planner.lookup_object(write.index)
            if view is None:
                self._pickles[index] = pickled(value)
            elif view.numel():
                copies.append((view, value))
        copy_now(copies)

    def copy(self, other: "SnapshotFile") -> None:
        """Copy another file."""
        self._forget()
        length = other.data_bytes + other.layout_bytes
        os.ftruncate(self._fd, length)
        self._map_all(other.data_bytes, other.layout_bytes)
        self.all_bytes.copy_(other.all_bytes)
        self.description = other.description
        self._use(other.items)
        self._pickles = [*other._pickles]

    def describe(self, description: Description) -> None:
        """Replace the description; raise ``OSError`` if there is not enough memory."""
        items, layout = self.items, packed(self.items, description)
        pickles = self._pickles
        os.ftruncate(self._fd, self.data_bytes + len(layout))
        os.pwrite(self._fd, layout, self.data_bytes)
        self._map_all(self.data_bytes, len(layout))
        self.description = description
        self._use(items)
        self._pickles = pickles

    def clear(self) -> None:
        """Free the memory."""
        self._forget()
        os.ftruncate(self._fd, 0)

    def drop(self) -> None:
        """Drop the cached state of the content, because another object is about to change it."""
        self._forget()

    def bytes_to_receive(self, data_bytes: int, layout_bytes: int) -> torch.Tensor:
        """Allocate memory for a file that another rank sends; return it as bytes."""
        self._forget()
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, data_bytes + layout_bytes)
        self._map_all(data_bytes, layout_bytes)
        return self.all_bytes

    @property
    def all_bytes(self) -> torch.Tensor:
        """The whole file as a tensor of bytes."""
        assert self._map is not None
        return torch.frombuffer(self._map, dtype=torch.uint8)

    def _map_all(self, data_bytes: int, layout_bytes: int, *, is_there: bool = False) -> None:
        length, there = data_bytes + layout_bytes, os.fstat(self._fd)
        if there.st_size < length:
            raise LayoutMismatchError("the buffer is shorter than its file")
        is_there = is_there and there.st_blocks * 512 >= length
        self.unpin()
        self._map = mapped(self._fd, length, is_there=is_there)
        self.data_bytes, self.layout_bytes = data_bytes, layout_bytes

    def pin(self) -> None:
        """Start to register the memory with the GPU, if this process uses one, for faster copies.

        It takes 0.02 to 0.1 s per GB, in the background; the next ``write`` waits for it.
        """
        if self._registration is None and self._map is not None:
            self._registration = register(self.all_bytes, self)

    def unpin(self) -> None:
        """Unregister the memory from the GPU, so that it can be freed."""
        if self._registration is not None:
            self._registration.end()
            self._registration = None

    def _use(self, items: "list[Item] | tuple[Item, ...]") -> None:
        whole = self.all_bytes
        self.items = tuple(items)
        self._keys = tuple(item.key for item in self.items)
        self._pickles, self._views = [b""] * len(self.items), []
        for item in self.items:
            if not item.dtype:
                self._views.append(None)
                continue
            dtype = getattr(torch, item.dtype)
            count = dtype.itemsize
            for length in item.shape:
                count *= length
            data = whole[item.data_start : item.data_start + count]
            if count:
                self._views.append(data.view(dtype).view(item.shape))
            else:
                self._views.append(torch.empty(item.shape, dtype=dtype, device="cpu"))

    def _forget(self) -> None:
        """Drop all views of the memory, which would keep it mapped."""
        self.unpin()
        self._views, self.items, self._keys, self._map = [], (), (), None
        self.description = Description()
        self.data_bytes = self.layout_bytes = 0


def is_same_data(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same bytes, including NaN."""
    first, second = (
        tensor.detach().cpu().contiguous().flatten().view(torch.uint8) for tensor in (one, other)
    )
    return torch.equal(first, second)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))
