"""Writes one checkpoint from buffers in memory, which are its files already."""

import mmap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...training.checkpoints.layout import Description, digest, unpacked
from ...training.checkpoints.storage import (
    METADATA,
    Storage,
    file_of,
    of_bytes,
    open_storage,
    words_of,
)
from .containers import mend
from .meeting import NOT_AGREED, PATIENCE_S, Meeting, MeetingError
from .order import Order, Share, Written

_CHUNK_BYTES = 1 << 23


def write(
    order: Order,
    fds: Sequence[int],
    patience_s: float = PATIENCE_S,
    tick: Callable[[], object] = lambda: None,
) -> Written:
    """Write a checkpoint, or this node's part of it; it is visible when it is complete.

    Or tell the others that this part does not come.

    Args:
        order: what to write.
        fds: the buffers of its shares.
        patience_s: how long other nodes are waited for at least.
        tick: is called whenever the storage has done something.
    """
    begun = time.monotonic()
    try:
        storage = open_storage(order.folder)
        path = storage.path(order.step)
        if order.given_up:
            Meeting(storage, order, patience_s).has_failed(order.given_up)
            return Written(order.given_up)
        if order.unless_newer and max(storage.steps(), default=-1) >= order.step:
            return Written("", path)
        meeting = Meeting(storage, order, patience_s, tick)
        count = _write(order, fds, storage, meeting, tick)
    except Exception as error:  # whatever a file system of fsspec raises
        return Written(words_of(error) or type(error).__name__)
    return Written("", path, count, time.monotonic() - begun)


def forget(order: Order) -> None:
    """Forget what the savers of several nodes have said: it is known that they are done."""
    with suppress(Exception):  # it is cleaned with the next checkpoint
        storage = open_storage(order.folder)
        Meeting(storage, order).end()


def _write(
    order: Order,
    fds: Sequence[int],
    storage: Storage,
    meeting: Meeting,
    tick: Callable[[], object],
) -> int:
    """Write a checkpoint; return how many bytes it has, 0 where another node makes it visible."""
    draft, has_begun = storage.draft(order.step, order.attempt), False

    def abandon() -> None:
        if order.is_first and has_begun:  # else it may be of an earlier one
            with suppress(Exception):  # it is cleaned when the next one is written
                storage.abandon(draft)

    try:
        files = _opened(order, fds)
        digests = {file.share.rank: digest(file.items) for file in files}
        metadata, agreed = files[0].description
        if order.is_first:
            agreed = agreed or tuple(digests.values())  # one file has what all ranks have
            if not metadata or any(
                agreed[rank : rank + 1] != (of,) for rank, of in digests.items()
            ):
                raise MeetingError(NOT_AGREED)
        is_new = meeting.begin(draft)
        has_begun = True
        if is_new:
            for file in files:
                _put(storage, draft, file, tick)
        meeting.has_written(digests, sum(file.share.data_bytes for file in files))
        if not order.is_first:
            return 0
        count = meeting.wait_for_others(agreed)
        if storage.has(draft):  # else a saver has died that had come so far
            storage.put(draft, METADATA, of_bytes(metadata))
        storage.publish(order.step, draft, order.keep)
    except Exception as error:
        words = meeting.has_failed(words_of(error), abandon)
        abandon()
        raise MeetingError(words) from error
    return len(metadata) + count


class _File(NamedTuple):
    """A file of a checkpoint, in memory."""

    share: Share
    buffer: mmap.mmap
    items: Sequence[Any]
    description: Description


def _opened(order: Order, fds: Sequence[int]) -> list[_File]:
    """Return the files of a checkpoint that are here.

    Raises:
        ValueError: they do not belong together.
    """
    # They are not closed: where an error comes out of here, parts of them are still looked at.
    files = []
    for share, fd in zip(order.shares, fds, strict=True):
        buffer = mmap.mmap(fd, share.data_bytes + share.layout_bytes)
        files.append(_File(share, buffer, *unpacked(buffer[share.data_bytes :])))
    return files


def _put(storage: Storage, draft: str, file: _File, tick: Callable[[], object]) -> None:
    """Write one file.

    Raises:
        ValueError: the buffer is not what it should be.
    """
    data = memoryview(file.buffer)[: file.share.data_bytes]
    for _, start, length, dtype, *_ in file.items:
        if dtype:
            mend(data[start : start + length])

    def write_all(target: Any) -> None:
        for start in range(0, len(data), _CHUNK_BYTES):
            target.write(data[start : start + _CHUNK_BYTES])
            tick()

    storage.put(draft, file_of(file.share.rank), write_all)
