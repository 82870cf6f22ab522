"""The page that describes a worker's snapshot buffers, and its messages to the agent.

The worker writes the page; the agent of its node reads it, even after the worker has died. Each
buffer has an entry, which is invalidated before the buffer changes and written after it is
complete; an entry with a wrong checksum is invalid. After the entries come the destinations of
checkpoints by owner. The saver increments the last word whenever its storage makes progress.

The layout of a buffer is appended to its file (``checkpoints/layout.py``).
"""

import json
import struct
import zlib
from typing import NamedTuple

SOCKET = "snapshots"
"""Socket at which an agent hands out buffers."""
PAGE_BYTES = 4096
BUFFERS = 5
"""Two alternate; a third is used while the saver reads one of them, and two more hold steps of
replicas if these are not the newest."""
MAGIC = b"ftrsnap4"
REQUEST = struct.Struct("<8sI")
"""A request for memory: ``MAGIC`` and the worker's rank."""
REPLY = struct.Struct("<8sqQB?")
"""The answer, with the page and the buffers as descriptors: ``MAGIC``, the step from which all
ranks resume (-1 if none) and its owner (0 if unknown), the buffers that the saver is reading (one
bit each), and whether this is the first round of the job, so that nothing is writing checkpoints.
Without descriptors, the memory belongs to another process of this rank."""
REPLICA = struct.Struct("<8sIH")
"""A request for memory for other ranks' shards: ``MAGIC``, the rank and a number from 1."""
SAVE = struct.Struct("<8sBqQ")
"""A request for a checkpoint, on the same connection: ``MAGIC``, the buffer to write, which must
not change until the answer, the step and the owner."""
SAVED = struct.Struct("<8sBqQ")
"""The answer: the same, followed by an error if it was not written."""
REASON_BYTES = 1000
"""Maximum length of that error."""
WRITTEN = struct.Struct("<8sIq")
"""Report of a checkpoint that the worker has written itself: ``MAGIC``, its rank and the step,
followed by the directory."""
DIRECTORY_BYTES = 4096
"""Maximum length of that directory."""

_ENTRY = struct.Struct("<8sQQQIIQQ?")
_CHECKSUM = struct.Struct("<I")
_ENTRY_BYTES = 128
_INVALID = bytes(_ENTRY.size + _CHECKSUM.size)
_DESTINATIONS_START = BUFFERS * _ENTRY_BYTES
_LENGTH = struct.Struct("<II")
_PROGRESS_START = PAGE_BYTES - 8
_DESTINATIONS_MAX = _PROGRESS_START - _DESTINATIONS_START - _LENGTH.size


class Entry(NamedTuple):
    """Content of one buffer: a rank's shard of the state of one step."""

    generation: int
    """Increases with each snapshot, regardless of its owner."""
    owner: int
    """Digest of the directory and the names of the state (``checkpoints/coordination.py``)."""
    step: int
    """Completed steps."""
    world_size: int
    rank: int
    data_bytes: int
    """Length of the ``torch.distributed.checkpoint`` file at the start of the buffer."""
    layout_bytes: int
    """Length of the layout that follows it."""
    is_replicated: bool
    """Whether all ranks have the same state, so that any rank's shard is complete."""


def read(page: memoryview, index: int) -> Entry | None:
    """Return the entry of a buffer; None if it is invalid."""
    start = index * _ENTRY_BYTES
    data = bytes(page[start : start + len(_INVALID)])
    magic, *fields = _ENTRY.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _ENTRY.size)
    if magic != MAGIC or checksum != zlib.crc32(data[: _ENTRY.size]):
        return None
    return Entry(*fields)


def write(page: memoryview, index: int, entry: Entry | None) -> None:
    """Write the entry of a buffer; None invalidates it."""
    data = _INVALID
    if entry is not None:
        packed = _ENTRY.pack(MAGIC, *entry)
        data = packed + _CHECKSUM.pack(zlib.crc32(packed))
    start = index * _ENTRY_BYTES
    page[start : start + len(data)] = data


class Destination(NamedTuple):
    """Where and when the saver writes checkpoints."""

    folder: str
    """Absolute path, or URL."""
    keep: int
    """Number of checkpoints to keep."""
    at_breakpoint: bool
    """Whether to write one when the job ends or this node leaves."""


_TYPES = (str, int, bool)
"""Types of the fields of ``Destination``."""


def read_destinations(page: memoryview) -> dict[int, Destination]:
    """Return the destinations of checkpoints by owner, with the last one written at the end."""
    length, checksum = _LENGTH.unpack_from(page, _DESTINATIONS_START)
    data = bytes(page[_DESTINATIONS_START + _LENGTH.size :][:length])
    if not length or zlib.crc32(data) != checksum:
        return {}
    try:
        found = {int(owner): Destination(*fields) for owner, fields in json.loads(data)}
    except (ValueError, TypeError, RecursionError):
        return {}  # a script can write to the page
    return {owner: one for owner, one in found.items() if tuple(map(type, one)) == _TYPES}


def write_destination(page: memoryview, owner: int, destination: Destination) -> bool:
    """Write the destination of an owner; return False if its path is too long.

    Other owners keep theirs as long as they have entries, and there is room.
    """
    entries = [read(page, index) for index in range(BUFFERS)]
    present = {entry.owner for entry in entries if entry is not None}
    kept = [(of, one) for of, one in read_destinations(page).items() if of in present - {owner}]
    kept.append((owner, destination))
    while kept and len(data := json.dumps(kept).encode()) > _DESTINATIONS_MAX:
        del kept[0]
    if not kept:
        data = b""
    whole = _LENGTH.pack(len(data), zlib.crc32(data)) + data
    page[_DESTINATIONS_START : _DESTINATIONS_START + len(whole)] = whole
    return bool(kept)


def tick(page: memoryview) -> None:
    """Count progress of the saver's storage."""
    words = page.cast("Q")
    words[_PROGRESS_START // 8] = (words[_PROGRESS_START // 8] + 1) % (1 << 64)


def progress(page: memoryview) -> int:
    """Return a number that changes whenever the saver's storage makes progress."""
    return int(page.cast("Q")[_PROGRESS_START // 8])
