"""Reads and writes the files of a checkpoint: one ``torch.save`` archive per value.

A snapshot writes a rank's file to memory and later overwrites the values in place; workers without
a saver write it to storage. A value that is not a tensor gets a slot with spare room, which a
comment in the archive fills. The metadata is a pickle, so only workers build it, and it is read
only to load a checkpoint.
"""

import io
import os
import pickle
import re
import struct
import warnings
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.futures import Future

from .copying import local
from .kinds import SAME, Kinds, place_of
from .layout import RECORD_NAME, Checksum, Record, read_record
from .storage import METADATA, Storage, file_of
from .storage_backends import FilePart, is_url

ALIGNMENT = 64
"""Alignment of each archive, the same as that of the data inside a torch archive."""
_COMMENT_MAX = 65535
_PIECE_BYTES = 1 << 23
skip_data: Any = getattr(torch.serialization, "skip_data", nullcontext)
"""With torch >= 2.5, ``torch.save`` leaves out the bytes of tensors, and their checksum."""
_LOCAL_HEADER = struct.Struct("<26xHH")

Path = tuple[str | int, ...]
"""Keys of a value in a nested state dict, outermost first."""


class LayoutMismatchError(Exception):
    """Raised if a state does not match the layout of a file."""


class Item(NamedTuple):
    """The position of one value in the file."""

    path: Path
    start: int
    """Offset of the archive, in bytes."""
    length: int
    """Size of the archive, in bytes, including spare room."""
    dtype: str
    """E.g. ``float32``; empty if the value is not a tensor."""
    shape: tuple[int, ...]
    data_start: int
    """Offset of the tensor's bytes; 0 before ``with_data_start``."""

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
        written: called after each write.
        room: memory at least as large as each tensor. The bytes of tensors are then left out, if
            this version of torch can, and the caller writes them; ``file`` must have ``seek``.
        checksums: list to which the checksum of each value is added; not with ``room``.

    Raises:
        OSError: If a write fails.
        RuntimeError: If a tensor has no data.
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
        part = local(value)
        if part.numel() and not part.untyped_storage().nbytes():
            raise RuntimeError(f"{write.index.fqn} has no data: its storage was freed")
        tensor = _alike(part, room) if room is not None else _on_host(part)
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
    part = part.detach().cpu().contiguous()
    return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()


def _alike(part: torch.Tensor, room: memoryview) -> torch.Tensor:
    """Return a tensor like that of ``_on_host``, in ``room`` and with undefined values."""
    if not part.numel():
        return torch.empty(part.shape, dtype=part.dtype, device="cpu")
    data = torch.frombuffer(room, dtype=torch.uint8, count=part.nbytes)
    return data.view(part.dtype).view(part.shape)


class _Sink:
    """A file that is written in small pieces; torch may also skip bytes in it."""

    def __init__(
        self, file: Any, written: Callable[[], object], checksums: list[Checksum] | None
    ) -> None:
        self._file, self._written, self._checksums = file, written, checksums
        self.count = 0
        self.error: OSError | None = None
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
        if self._checksums is not None:
            self._checksums.append((self.count, self._checksum))
        self._checksum = 0

    def seek(self, count: int, whence: int) -> None:
        assert whence == os.SEEK_CUR
        self._file.seek(count, os.SEEK_CUR)
        self.count += count

    def flush(self) -> None:
        """Do nothing: the owner of the file flushes it."""


def serialized(value: Any) -> bytes:
    """Return the archive of a value that is not a tensor, in DCP's format."""
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def pad(data: bytes, length: int) -> bytes:
    """Pad an archive by a comment; raise ``LayoutMismatchError`` if it does not fit."""
    room = length - len(data)
    if not 0 <= room <= _COMMENT_MAX:
        raise LayoutMismatchError("a value does not fit its slot")
    return data[:-2] + struct.pack("<H", room) + bytes(room)


def with_data_start(item: Item, file: Any) -> Item:
    """Look up ``data_start`` of an item in a readable file."""
    if not item.dtype or 0 in item.shape:
        return item._replace(data_start=item.start if item.dtype else 0)
    with zipfile.ZipFile(FilePart(file, item.start, item.length)) as container:
        (entry,) = [one for one in container.infolist() if one.filename.endswith("/data/0")]
    header = item.start + entry.header_offset
    file.seek(header)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return item._replace(data_start=int(header + _LOCAL_HEADER.size + name + extra))


# --- metadata ------------------------------------------------------------------------------------

Offsets = Mapping[MetadataIndex, tuple[int, int]]
"""Offset and length, in bytes, of the archive of each item in the file of a plan."""


def offsets_of(plan: SavePlan, items: Sequence[Any]) -> Offsets:
    """Return the offsets of a plan's items; ``items`` has the same order."""
    indexes = (write.index for write in plan.items)
    return {index: (item.start, item.length) for index, item in zip(indexes, items, strict=True)}


def plan_of(state: Mapping[str, Any], kinds: Kinds = SAME) -> tuple[SavePlan, list[str]]:
    """Return a rank's plan for its nested state dict, and the flat keys of its items in memory."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(kinds.in_checkpoint(state), is_coordinator=True)
    plan = planner.create_local_plan()
    paths = (planner.mappings[write.index.fqn] for write in plan.items)
    return plan, [".".join((place_of(str(first)).name, *map(str, rest))) for first, *rest in paths]


def first_items(plan: SavePlan, count: int | None) -> SavePlan:
    """Reduce a plan to its first ``count`` items; None keeps all."""
    items = plan.items[:count]
    names = {write.index.fqn for write in items}
    paths = {name: path for name, path in plan.planner_data.items() if name in names}
    return replace(plan, items=items, planner_data=paths)


def metadata_of(plans: Sequence[SavePlan], offsets: Sequence[Offsets]) -> bytes:
    """Return the metadata of a checkpoint from the plans and offsets of all ranks, by rank."""
    planner = DefaultSavePlanner()
    planner.set_up_planner({}, is_coordinator=True)
    _, metadata = planner.create_global_plan(list(plans))
    # An item that several ranks hold is read from the lowest rank.
    metadata.storage_data = {
        index: filesystem._StorageInfo(file_of(rank), start, length)
        for rank, of_rank in reversed([*enumerate(offsets)])
        for index, (start, length) in of_rank.items()
    }
    metadata.version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    return pickle.dumps(metadata)


# --- reading -------------------------------------------------------------------------------------

_READ_BYTES = 1 << 23
_UNKNOWN_CLASS = re.compile(r"Unsupported global: GLOBAL (\S+) was not an allowed global")
"""Message of torch's unpickler about a class that is not registered with it."""
_UNDECODABLE = (pickle.UnpicklingError, EOFError, zipfile.BadZipFile)


class CorruptCheckpointError(Exception):
    """Raised if the files of a checkpoint were changed or truncated after they were written."""


class CheckpointReader:
    """Reads the files of one checkpoint, on one rank."""

    def __init__(self, storage: Storage, step: int) -> None:
        """Read the metadata and the record of checksums.

        Raises:
            CorruptCheckpointError: If they are damaged.
            OSError: If they cannot be read.
        """
        self._storage, self._step = storage, step
        data = storage.read(step, METADATA)
        self.digest = zlib.crc32(data)
        """Checksum of the metadata: the same on all ranks that read the same checkpoint."""
        self.record = self._read_record()
        """None if the checkpoint has no checksums: written by another program or an old ft-run."""
        if self.record is not None:
            ((length, checksum),) = self.record.files[METADATA]
            if (length, checksum) != (len(data), self.digest):
                raise CorruptCheckpointError(f"{METADATA} does not match its checksum")
        try:
            # A checkpoint is trusted, as in DCP.
            self.metadata: Metadata = pickle.loads(data)  # noqa: S301
        except _UNDECODABLE as error:
            raise CorruptCheckpointError(f"{METADATA} cannot be decoded: {error}") from None

    def _read_record(self) -> Record | None:
        try:
            return read_record(self._storage.read(self._step, RECORD_NAME))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            raise CorruptCheckpointError(f"{RECORD_NAME} cannot be decoded: {error}") from None

    def load(self, flat: dict[str, Any]) -> None:
        """Load the values of a flat state dict: tensors in place, other values are replaced.

        Raises:
            CorruptCheckpointError: If a value is damaged.
            OSError: If a value cannot be read.
        """
        path = self._storage.path(self._step)
        reader: Any = _plain_reader(path)
        if self.record is not None:
            reader = _ComparingReader(path, self)
        try:
            # Each rank reads alone: a collective would wait for a rank that cannot read.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*assuming the intent is to")  # it is
                load(flat, storage_reader=reader, no_dist=True)
        except CheckpointException as raised:
            error = next(iter(raised.failures.values()))[0]
            if found := _UNKNOWN_CLASS.search(str(error)):
                raise RuntimeError(
                    f"torch does not load tensors of class {found[1]}: expected a call of "
                    "torch.serialization.add_safe_globals with it before Checkpointer"
                ) from None
            if isinstance(error, _UNDECODABLE) or "PytorchStreamReader" in str(error):
                raise CorruptCheckpointError(f"a value cannot be decoded: {error}") from None
            raise error from None

    def read_values(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        """Read the values of a plan, file by file."""
        places: dict[str, list[tuple[int, int, ReadItem]]] = {}
        for item in plan.items:
            place = self.metadata.storage_data[item.storage_index]
            of_file = places.setdefault(place.relative_path, [])
            of_file.append((place.offset, place.offset + place.length, item))
        assert self.record is not None
        for name, wanted in places.items():
            known = self.record.files.get(name)
            compared: set[int] = set()
            with self._storage.reading(self._step, name) as read:
                for start, end, item in sorted(wanted, key=lambda one: one[:2]):
                    part = None
                    if known is not None and end not in compared:
                        part = _compared(read, known, start, end, name)
                        compared.add(end)
                    _use(item, planner, part or read(start, end))


def _compared(read: Any, known: "list[tuple[int, int]]", start: int, end: int, name: str) -> Any:
    """Return a value of a file; raise ``CorruptCheckpointError`` if its checksum differs."""
    index = bisect_left(known, end, key=lambda one: one[0])
    begin = known[index - 1][0] if index else 0
    if index == len(known) or known[index][0] != end or not begin <= start:
        raise CorruptCheckpointError(f"the value at {start} of {name} has no checksum")
    part: BinaryIO = read(begin, end)
    found = 0
    while data := part.read(_READ_BYTES):
        found = zlib.crc32(data, found)
    if part.tell() != end - begin or found != known[index][1]:
        raise CorruptCheckpointError(f"the value at {start} of {name} does not match its checksum")
    if isinstance(part, io.BytesIO):  # already fetched
        return io.BytesIO(part.getbuffer()[start - begin :])
    return read(start, end)


def _use(item: ReadItem, planner: LoadPlanner, part: BinaryIO) -> None:
    """Load a value like ``FileSystemReader``."""
    if item.type is LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(part.read()))
        return
    tensor: torch.Tensor = torch.load(part, map_location="cpu", weights_only=True)
    for dimension, (offset, length) in enumerate(
        zip(item.storage_offsets, item.lengths, strict=True)
    ):
        tensor = tensor.narrow(dimension, offset, length)
    target = planner.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        raise ValueError(
            f"size mismatch of {item.storage_index.fqn}: {list(tensor.size())} in the checkpoint, "
            f"{list(target.size())} in the script"
        )
    target.copy_(tensor)
    planner.commit_tensor(item, target)


class _ComparingReader(FileSystemReader):
    def __init__(self, path: str, reader: CheckpointReader) -> None:
        super().__init__(path)
        self._reader = reader

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._reader.metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        self._reader.read_values(plan, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _plain_reader(path: str) -> FileSystemReader:
    if not is_url(path):
        return FileSystemReader(path)
    try:
        module = import_module("torch.distributed.checkpoint.fsspec_filesystem")
    except ModuleNotFoundError:  # before torch 2.15
        module = import_module("torch.distributed.checkpoint._fsspec_filesystem")
    reader: FileSystemReader = module.FsspecReader(path)
    return reader
