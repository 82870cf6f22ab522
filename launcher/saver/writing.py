"""Writes one checkpoint from buffers in memory, which contain its files."""

import mmap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...training.checkpoints.layout import (
    RECORD_NAME,
    Checksum,
    Description,
    checksums_of,
    digest,
    record_of,
    tag_of,
    unpacked,
)
from ...training.checkpoints.storage import METADATA, Storage, file_of, of_bytes, one_line
from ...training.checkpoints.storage_backends import open_storage
from ...training.worker import snapshot_page as page
from .coordination import NOT_AGREED, PEER_TIMEOUT_S, Coordination, IncompleteCheckpointError
from .order import WriteOrder, WriteResult, file_rank

_CHUNK_BYTES = 1 << 23


def write(
    order: WriteOrder,
    fds: Sequence[int],
    timeout_s: float = PEER_TIMEOUT_S,
    tick: Callable[[], object] = lambda: None,
) -> WriteResult:
    """Write a checkpoint, or this node's shards of it, or report ``order.given_up``."""
    begun = time.monotonic()
    try:
        storage = open_storage(order.destination.folder, tag_of(order.job))
        path = storage.path(order.step)
        if order.given_up:
            Coordination(storage, order, timeout_s).report_failure(order.given_up)
            return WriteResult(order.given_up)
        if order.unless_newer and max(storage.steps(), default=-1) >= order.step:
            return WriteResult("", path)
        peers = Coordination(storage, order, timeout_s, tick)
        count, warning = _write(order, fds, storage, peers, tick)
    except Exception as error:  # a file system of fsspec may raise any exception
        return WriteResult(one_line(error) or type(error).__name__)
    return WriteResult("", path, count, time.monotonic() - begun, warning)


def _write(
    order: WriteOrder,
    fds: Sequence[int],
    storage: Storage,
    peers: Coordination,
    tick: Callable[[], object],
) -> tuple[int, str]:
    """Write a checkpoint; return its size in bytes, and a warning, empty if there is none.

    The size is 0 if another node makes the checkpoint visible.
    """
    draft, has_begun = storage.draft(order.step, order.attempt), False

    def abandon() -> None:
        if order.is_first and has_begun:  # else it may belong to an earlier attempt
            with suppress(Exception):  # the next checkpoint removes it
                storage.abandon(draft)

    try:
        files = _opened(order, fds)
        digests = {file_rank(file.entry): digest(file.items) for file in files}
        metadata, agreed, _ = files[0].description
        if order.is_first:
            agreed = agreed or tuple(digests.values())  # a replicated state is one file
            if not metadata or any(
                agreed[rank : rank + 1] != (of,) for rank, of in digests.items()
            ):
                raise IncompleteCheckpointError(NOT_AGREED)
        peers.begin(draft)
        has_begun = True
        for file in files:
            _put(storage, draft, file, tick)
        checksums = {file_of(file_rank(file.entry)): _checksums(file, tick) for file in files}
        count = sum(len(file.data) for file in files)
        peers.report_written_files(digests, count, checksums)
        if not order.is_first:
            return 0, ""
        count, checksums = peers.wait_for_others(agreed)
        checksums[METADATA] = checksums_of(memoryview(metadata), [len(metadata)])
        known = record_of(order.job, order.attempt, checksums)
        storage.put(draft, RECORD_NAME, of_bytes(known))
        storage.put(draft, METADATA, of_bytes(metadata))
        warning = storage.publish(order.step, draft, order.destination.keep)
        peers.end()
    except Exception as error:
        words = peers.report_failure(one_line(error), abandon)
        abandon()
        raise IncompleteCheckpointError(words) from error
    return len(metadata) + len(known) + count, warning


class _File(NamedTuple):
    """A file of a checkpoint, in memory."""

    entry: page.Entry
    buffer: mmap.mmap
    items: Sequence[Any]
    description: Description

    @property
    def ends(self) -> list[int]:
        """End of each value to write, in bytes."""
        return [start + length for _, start, length, *_ in self.items[: self.description.saved]]

    @property
    def data(self) -> memoryview:
        """The bytes to write."""
        is_whole = self.description.saved is None
        size = self.entry.data_bytes if is_whole else max(self.ends, default=0)
        return memoryview(self.buffer)[:size]


def _opened(order: WriteOrder, fds: Sequence[int]) -> list[_File]:
    """Map the buffers of an order; raises ``ValueError`` if a buffer is invalid."""
    # They are not closed: the traceback of an error still has views of them.
    files = []
    for entry, fd in zip(order.entries, fds, strict=True):
        buffer = mmap.mmap(fd, entry.data_bytes + entry.layout_bytes)
        files.append(_File(entry, buffer, *unpacked(buffer[entry.data_bytes :])))
    return files


def _checksums(file: _File, tick: Callable[[], object]) -> list[Checksum]:
    found = checksums_of(file.data, file.ends)
    tick()
    return found


def _put(storage: Storage, draft: str, file: _File, tick: Callable[[], object]) -> None:
    data = file.data

    def write_all(target: Any) -> None:
        for start in range(0, len(data), _CHUNK_BYTES):
            target.write(data[start : start + _CHUNK_BYTES])
            tick()

    storage.put(draft, file_of(file_rank(file.entry)), write_all)
