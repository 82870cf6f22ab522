"""Writes one checkpoint from buffers in memory, which are its files already."""

import mmap
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ...training.checkpoint_storage import METADATA, Storage, open_storage, words_of
from ...training.snapshot_page import digest, unpacked
from .containers import mend
from .order import Order, Share, Written

_CHUNK_BYTES = 1 << 23


def write(order: Order, fds: Sequence[int]) -> Written:
    """Write a checkpoint; it is visible when it is complete, and not before.

    Args:
        order: what to write.
        fds: the buffers of its shares.
    """
    begun = time.monotonic()
    try:
        storage = open_storage(order.folder)
        path = storage.path(order.step)
        if order.unless_newer and max(storage.steps(), default=-1) >= order.step:
            return Written("", path)
        count = _write(order, fds, storage)
    except Exception as error:  # whatever a file system of fsspec raises
        return Written(words_of(error) or type(error).__name__)
    return Written("", path, count, time.monotonic() - begun)


def _write(order: Order, fds: Sequence[int], storage: Storage) -> int:
    """Write a checkpoint; return how many bytes it has."""
    draft = storage.draft(order.step, order.attempt)
    try:
        # They are not closed: where an error comes out of here, parts of them are still looked at.
        buffers = [
            mmap.mmap(fd, share.data_bytes + share.layout_bytes)
            for share, fd in zip(order.shares, fds, strict=True)
        ]
        layouts = [
            unpacked(buffer[share.data_bytes :])
            for share, buffer in zip(order.shares, buffers, strict=True)
        ]
        metadata, digests = layouts[0][1]
        if not metadata or (digests and [*digests] != [digest(items) for items, _ in layouts]):
            raise ValueError("its ranks had not agreed yet on what stands where in their files")
        storage.begin(draft)
        for share, buffer, (items, _) in zip(order.shares, buffers, layouts, strict=True):
            _put(storage, draft, share, buffer, items)
        storage.put(draft, METADATA, [metadata])
        storage.publish(order.step, draft, order.keep)
    except BaseException:
        with suppress(Exception):  # it is cleaned when the next one is written
            storage.abandon(draft)
        raise
    return len(metadata) + sum(share.data_bytes for share in order.shares)


def _put(
    storage: Storage, draft: str, share: Share, buffer: mmap.mmap, items: Sequence[Any]
) -> None:
    """Write one file.

    Raises:
        ValueError: the buffer is not what it should be.
    """
    data = memoryview(buffer)[: share.data_bytes]
    for _, start, length, dtype, *_ in items:
        if dtype:
            mend(data[start : start + length])
    storage.put(draft, share.file, _Parts(data))


class _Parts:
    """The bytes of a file, a part at a time, as often as they are asked for."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __iter__(self) -> Iterator[memoryview]:
        for start in range(0, len(self._data), _CHUNK_BYTES):
            yield self._data[start : start + _CHUNK_BYTES]
