"""Writes a rank's file of a checkpoint: one ``torch.save`` archive per value.

Snapshots write it to memory and later overwrite the values in place; workers without a saver write
it to storage. A value that is not a tensor has a slot with spare room, filled by the archive's
comment.
"""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType

from .late_copy import local
from .local_storage import FilePart
from .record import Checksum

ALIGNMENT = 64
"""Of each archive, as torch aligns the data in it."""
_COMMENT_MAX = 65535
_PIECE_BYTES = 1 << 23
skip_data: Any = getattr(torch.serialization, "skip_data", nullcontext)
"""Since torch 2.5: ``torch.save`` leaves out the bytes of tensors, and their checksum."""
_LOCAL_HEADER = struct.Struct("<26xHH")

Path = tuple[str | int, ...]
"""Keys of a value in a nested state dict, from the outside."""


class LayoutMismatchError(Exception):
    """Raised when a state does not match the layout of a file."""


class Item(NamedTuple):
    """The position of one value in the file."""

    path: Path
    start: int
    """Offset of its archive, in bytes."""
    length: int
    """Size of its archive, in bytes, including spare room."""
    dtype: str
    """E.g. ``float32``; empty: not a tensor."""
    shape: tuple[int, ...]
    data_start: int
    """Offset of the tensor's bytes; 0: not looked up."""

    @property
    def key(self) -> str:
        """The key in a flat state dict."""
        return ".".join(map(str, self.path))


def write_values(
    planner: DefaultSavePlanner,
    plan: SavePlan,
    file: Any,
    written: Callable[[], object] = lambda: None,
    *,
    room: memoryview | None = None,
    checksums: list[Checksum] | None = None,
) -> list[Item]:
    """Write the values of a plan from the start of a file; return their positions.

    Args:
        planner: that made the plan.
        plan: of one rank.
        file: with a method ``write``; with ``room`` also ``seek``.
        written: called after each write.
        room: memory at least as large as each tensor. The bytes of tensors are then left out, if
            this torch can: the caller writes them afterwards.
        checksums: list to which the checksum of each value is added; not with ``room``.

    Raises:
        OSError: a write failed.
    """
    sink = _Sink(file, written, checksums)
    items: list[Item] = []
    for write in plan.items:
        sink.write(bytes(-sink.count % ALIGNMENT))
        start, path = sink.count, planner.mappings[write.index.fqn]
        value = planner.lookup_object(write.index)
        if write.type is WriteItemType.BYTE_IO:
            data = serialized(value)
            sink.write(pad(data, len(data) + min(len(data) // 4 + 256, _COMMENT_MAX)))
            items.append(Item(path, start, sink.count - start, "", (), 0))
            sink.end_value()
            continue
        tensor = _alike(local(value), room) if room is not None else _on_host(local(value))
        try:
            with skip_data() if room is not None else nullcontext():
                torch.save(tensor, sink)  # type: ignore[arg-type]  # it only writes
        except Exception as error:
            raise sink.error or error from error  # torch hides the cause, e.g. a full disk
        dtype = str(tensor.dtype).removeprefix("torch.")
        items.append(Item(path, start, sink.count - start, dtype, tuple(tensor.shape), 0))
        sink.end_value()
    return items


def _on_host(part: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the host's memory with a storage of its size."""
    part = part.detach().cpu().contiguous()
    return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()


def _alike(part: torch.Tensor, room: memoryview) -> torch.Tensor:
    """Return a tensor as ``_on_host`` does, in existing memory and with undefined values."""
    if not part.numel():
        return torch.empty(part.shape, dtype=part.dtype)
    data = torch.frombuffer(room, dtype=torch.uint8, count=part.nbytes)
    return data.view(part.dtype).view(part.shape)


class _Sink:
    """A file that is written in small pieces; torch also skips bytes in it."""

    def __init__(
        self, file: Any, written: Callable[[], object], checksums: list[Checksum] | None
    ) -> None:
        self._file, self._written, self._checksums = file, written, checksums
        self.count = 0
        """Bytes written."""
        self.error: OSError | None = None
        """The error of the last write."""
        self._checksum = 0
        """Checksum of the bytes since the end of the previous value."""

    def write(self, data: "bytes | memoryview") -> int:
        view = memoryview(data)
        try:
            for start in range(0, len(view), _PIECE_BYTES):
                self._file.write(view[start : start + _PIECE_BYTES])
                self._written()
        except OSError as error:
            self.error = error
            raise
        self.count += len(view)
        if self._checksums is not None:
            self._checksum = zlib.crc32(view, self._checksum)
        return len(view)

    def end_value(self) -> None:
        """Add the checksum of a value that was written."""
        if self._checksums is not None:
            self._checksums.append((self.count, self._checksum))
        self._checksum = 0

    def seek(self, count: int, whence: int) -> None:
        """Leave out bytes, for ``skip_data``."""
        assert whence == os.SEEK_CUR
        self._file.seek(count, os.SEEK_CUR)
        self.count += count

    def flush(self) -> None:
        """Do nothing: the owner of the file flushes it."""


def serialized(value: Any) -> bytes:
    """Return the archive of a value that is not a tensor, as DCP writes it."""
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def pad(data: bytes, length: int) -> bytes:
    """Return an archive padded to a length by a comment.

    Raises:
        LayoutMismatchError: it is longer, or too much shorter.
    """
    room = length - len(data)
    if not 0 <= room <= _COMMENT_MAX:
        raise LayoutMismatchError("a value does not fit its slot")
    return data[:-2] + struct.pack("<H", room) + bytes(room)


def with_data_start(item: Item, file: Any) -> Item:
    """Return an item with ``data_start``, looked up in a readable file."""
    if not item.dtype or 0 in item.shape:
        return item._replace(data_start=item.start if item.dtype else 0)
    with zipfile.ZipFile(FilePart(file, item.start, item.length)) as container:
        (entry,) = [one for one in container.infolist() if one.filename.endswith("/data/0")]
    header = item.start + entry.header_offset
    file.seek(header)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return item._replace(data_start=int(header + _LOCAL_HEADER.size + name + extra))
