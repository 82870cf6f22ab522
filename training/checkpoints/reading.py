"""Reads a checkpoint and compares each value with its checksum."""

import io
import pickle
import warnings
import zipfile
import zlib
from bisect import bisect_left
from importlib import import_module
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.futures import Future

from . import record
from .record import Record, read_record
from .storage import METADATA, Storage
from .stores import is_url

_PIECE_BYTES = 1 << 23
_UNDECODABLE = (pickle.UnpicklingError, EOFError, zipfile.BadZipFile)


class CorruptCheckpointError(Exception):
    """Raised if the files of a checkpoint were changed or cut after they were written."""


class CheckpointReader:
    """Reads the files of one checkpoint, on one rank."""

    def __init__(self, storage: Storage, step: int) -> None:
        """Read what describes the checkpoint.

        Args:
            storage: of the checkpoint.
            step: of the checkpoint.

        Raises:
            CorruptCheckpointError: If it is damaged.
            OSError: If it cannot be read.
        """
        self._storage, self._step = storage, step
        data = storage.read(step, METADATA)
        self.digest = zlib.crc32(data)
        """Checksum of the metadata, the same on all ranks that read the same checkpoint."""
        self.record = self._read_record()
        """None if the checkpoint has no checksums: another program has written it, or ft-run before
        it had them."""
        if self.record is not None:
            ((length, checksum),) = self.record.files[METADATA]
            if (length, checksum) != (len(data), self.digest):
                raise CorruptCheckpointError(f"{METADATA} does not match its checksum")
        try:
            # As DCP does: a checkpoint is trusted.
            self.metadata: Metadata = pickle.loads(data)  # noqa: S301
        except _UNDECODABLE as error:
            raise CorruptCheckpointError(f"{METADATA} cannot be decoded: {error}") from None

    def _read_record(self) -> Record | None:
        try:
            return read_record(self._storage.read(self._step, record.NAME))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            raise CorruptCheckpointError(f"{record.NAME} cannot be decoded: {error}") from None

    def load(self, flat: dict[str, Any]) -> None:
        """Load values in place; other values than tensors are replaced.

        Args:
            flat: the flat state dict, with a value for each key to load.

        Raises:
            CorruptCheckpointError: If a value is damaged.
            OSError: If it cannot be read.
        """
        path = self._storage.path(self._step)
        reader: Any = _plain_reader(path)
        if self.record is not None:
            reader = _ComparingReader(path, self)
        try:
            # Each rank reads for itself: a collective would wait for a rank that cannot read.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*assuming the intent is to")  # it is
                load(flat, storage_reader=reader, no_dist=True)
        except CheckpointException as raised:
            error = next(iter(raised.failures.values()))[0]
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
    """Return a value of a file after comparing it with its checksum.

    Raises:
        CorruptCheckpointError: If it does not match.
    """
    index = bisect_left(known, end, key=lambda one: one[0])
    begin = known[index - 1][0] if index else 0
    if index == len(known) or known[index][0] != end or not begin <= start:
        raise CorruptCheckpointError(f"the value at {start} of {name} has no checksum")
    part: BinaryIO = read(begin, end)
    found = 0
    while data := part.read(_PIECE_BYTES):
        found = zlib.crc32(data, found)
    if part.tell() != end - begin or found != known[index][1]:
        raise CorruptCheckpointError(f"the value at {start} of {name} does not match its checksum")
    if isinstance(part, io.BytesIO):  # it was fetched: not again
        return io.BytesIO(part.getbuffer()[start - begin :])
    return read(start, end)


def _use(item: ReadItem, planner: LoadPlanner, part: BinaryIO) -> None:
    """Load a value, as ``FileSystemReader`` does."""
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
    """Has ``CheckpointReader`` read the values."""

    def __init__(self, path: str, reader: CheckpointReader) -> None:
        super().__init__(path)
        self._reader = reader

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata, which was read already."""
        return self._reader.metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Read the values of a plan."""
        self._reader.read_values(plan, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _plain_reader(path: str) -> FileSystemReader:
    """Return the reader of torch."""
    if not is_url(path):
        return FileSystemReader(path)
    try:
        module = import_module("torch.distributed.checkpoint.fsspec_filesystem")
    except ModuleNotFoundError:  # before torch 2.15
        module = import_module("torch.distributed.checkpoint._fsspec_filesystem")
    reader: FileSystemReader = module.FsspecReader(path)
    return reader
