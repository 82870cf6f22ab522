"""The values of a rank's file of a checkpoint: one container of ``torch.save`` after the other.

Both write them: a snapshot into memory, where its tensors are overwritten later, and a worker that
writes a checkpoint itself. A value that is no tensor has a slot that it need not fill: the
container's comment does.
"""

import io
import os
import struct
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType

from .late_copy import local

ALIGNMENT = 64
"""Of each container, as torch aligns the data inside."""
_COMMENT_MAX = 65535
_PIECE_BYTES = 1 << 23
_LOCAL_HEADER = struct.Struct("<26xHH")

Path = tuple[str | int, ...]
"""The keys that lead to a value in a nested state dict."""


class MisfitError(Exception):
    """Raised when a state does not fit a file that was made for another one."""


class Item(NamedTuple):
    """One value in the file."""

    path: Path
    start: int
    """Of its container, in bytes."""
    length: int
    """Of its container, in bytes; also the size of the slot, where it is no tensor."""
    dtype: str
    """Such as ``float32``; empty: it is no tensor."""
    shape: tuple[int, ...]
    data_start: int
    """Where the bytes of the tensor are; 0: it was not looked up."""

    @property
    def key(self) -> str:
        """The name in a flat state dict."""
        return ".".join(map(str, self.path))


def write_values(
    planner: DefaultSavePlanner,
    plan: SavePlan,
    file: Any,
    written: Callable[[], object] = lambda: None,
) -> list[Item]:
    """Write the values of a plan to a file, from its beginning; return what stands where.

    Args:
        planner: has made the plan, and knows the values.
        plan: of one rank.
        file: takes bytes by ``write``.
        written: is called whenever the file has taken some.

    Raises:
        OSError: it takes no more.
    """
    sink = _Sink(file, written)
    items: list[Item] = []
    for write in plan.items:
        sink.write(bytes(-sink.count % ALIGNMENT))
        start, path = sink.count, planner.mappings[write.index.fqn]
        value = planner.lookup_object(write.index)
        if write.type is WriteItemType.BYTE_IO:
            data = saved(value)
            sink.write(padded(data, len(data) + min(len(data) // 4 + 256, _COMMENT_MAX)))
            items.append(Item(path, start, sink.count - start, "", (), 0))
            continue
        tensor = local(value).detach().cpu().contiguous()
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        try:
            torch.save(tensor, sink)  # type: ignore[arg-type]  # it only writes
        except Exception as error:
            raise sink.error or error from error  # torch hides a full disk
        dtype = str(tensor.dtype).removeprefix("torch.")
        items.append(Item(path, start, sink.count - start, dtype, tuple(tensor.shape), 0))
    return items


class _Sink:
    """A file that only takes bytes, a piece at a time."""

    def __init__(self, file: Any, written: Callable[[], object]) -> None:
        self._file, self._written = file, written
        self.count = 0
        """How many it has taken."""
        self.error: OSError | None = None
        """Why it takes no more."""

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
        return len(view)

    def flush(self) -> None:
        """Whoever has opened the file makes it durable."""


def saved(value: Any) -> bytes:
    """Return what DCP writes of a value that is no tensor."""
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def padded(data: bytes, length: int) -> bytes:
    """Return a container with a comment that fills its slot.

    Raises:
        MisfitError: it is too long for its slot, or too short.
    """
    room = length - len(data)
    if not 0 <= room <= _COMMENT_MAX:
        raise MisfitError("a value does not fit its slot")
    return data[:-2] + struct.pack("<H", room) + bytes(room)


def with_data_start(item: Item, file: Any) -> Item:
    """Return a tensor's item with where its bytes are in a file that can be read."""
    if not item.dtype or 0 in item.shape:
        return item._replace(data_start=item.start if item.dtype else 0)
    with zipfile.ZipFile(_Slice(file, item.start, item.length)) as container:
        (entry,) = [one for one in container.infolist() if one.filename.endswith("/data/0")]
    header = item.start + entry.header_offset
    file.seek(header)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return item._replace(data_start=int(header + _LOCAL_HEADER.size + name + extra))


class _Slice(io.RawIOBase):
    """A part of a file, to read."""

    def __init__(self, file: Any, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._at))
        self._file.seek(self._start + self._at)
        data: bytes = self._file.read(count)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
