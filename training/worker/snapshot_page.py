"""The page in which a worker says what its buffers hold, and how it speaks to the agent about them.

A worker writes the page, the agent of its node reads it, also when the worker is dead: each buffer
has an entry, which is made void before the buffer is touched and written after it is complete. An
entry with a wrong checksum is void. Below the entries is where checkpoints are to be written. The
last word is the saver's: it changes when the storage has done something for it.

What stands where in a buffer's file is behind the file (``checkpoints/layout.py``).
"""

import json
import struct
import zlib
from typing import NamedTuple

from . import agent_socket

PAGE_BYTES = 4096
BUFFERS = 5
"""Two are used, a third while the saver writes a checkpoint from one of the others, and two more
for steps that replicas belong to, where these are not the newest."""
REQUEST = struct.Struct("<8sI")
"""What a worker asks with: ``MAGIC`` and its rank."""
REPLY = struct.Struct("<8sqB?")
"""What it is answered, with the page and the buffers as descriptors: ``MAGIC``, the step that all
ranks resume from (-1: none), the buffers that the saver reads (a bit for each), and whether this is
the first round of the job, so that nothing writes checkpoints yet."""
REPLICA = struct.Struct("<8sIH")
"""What it asks with for memory for other ranks' shares: ``MAGIC``, its rank and a number from 1."""
MAGIC = b"ftrsnap3"
SAVE = struct.Struct("<8sBq")
"""What a worker says next, as often as it likes: ``MAGIC``, the buffer to be written to storage,
which it leaves alone until it is answered, and the step."""
SAVED = struct.Struct("<8sBq")
"""The answer: the same, and behind it why the checkpoint was not written; nothing: it is
complete."""
WORDS_BYTES = 1000
"""What such a reason may have."""
WRITTEN = struct.Struct("<8sIq")
"""What a worker says of a checkpoint that it has written itself: ``MAGIC``, its rank, the step."""

_ENTRY = struct.Struct("<8sQQIIQQ?")
_CHECKSUM = struct.Struct("<I")
_ENTRY_BYTES = 128
_VOID = bytes(_ENTRY.size + _CHECKSUM.size)
_PLACE_START = BUFFERS * _ENTRY_BYTES
_LENGTH = struct.Struct("<II")
_PROGRESS_START = PAGE_BYTES - 8


class Entry(NamedTuple):
    """What one buffer holds: a rank's share of the state of one step."""

    generation: int
    """Grows with each snapshot of a worker."""
    step: int
    """How many steps were done."""
    world_size: int
    rank: int
    data_bytes: int
    """The length of the file of ``torch.distributed.checkpoint`` at the head of the buffer."""
    layout_bytes: int
    """The length of the list of what stands where in it, which follows."""
    is_replicated: bool
    """Any rank's share is the state of all ranks."""


def read(page: memoryview, index: int) -> Entry | None:
    """Return what a buffer holds; None: nothing that is complete."""
    start = index * _ENTRY_BYTES
    data = bytes(page[start : start + len(_VOID)])
    magic, *fields = _ENTRY.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _ENTRY.size)
    if magic != MAGIC or checksum != zlib.crc32(data[: _ENTRY.size]):
        return None
    return Entry(*fields)


def write(page: memoryview, index: int, entry: Entry | None) -> None:
    """Say what a buffer holds; None: nothing."""
    data = _VOID
    if entry is not None:
        packed = _ENTRY.pack(MAGIC, *entry)
        data = packed + _CHECKSUM.pack(zlib.crc32(packed))
    start = index * _ENTRY_BYTES
    page[start : start + len(data)] = data


class Place(NamedTuple):
    """Where checkpoints are to be written."""

    folder: str
    """Absolute, or a URL."""
    keep: int
    """How many stay."""
    at_breakpoint: bool
    """Also when the job ends or this node leaves."""


def read_place(page: memoryview) -> Place | None:
    """Return where checkpoints are to be written; None: the saver writes none."""
    length, checksum = _LENGTH.unpack_from(page, _PLACE_START)
    data = bytes(page[_PLACE_START + _LENGTH.size :][:length])
    if not length or zlib.crc32(data) != checksum:
        return None
    return Place(*json.loads(data))


def write_place(page: memoryview, place: Place) -> bool:
    """Say where checkpoints are to be written; return whether there is room for so long a path."""
    data = json.dumps(place).encode()
    if _PLACE_START + _LENGTH.size + len(data) > _PROGRESS_START:
        data = b""
    whole = _LENGTH.pack(len(data), zlib.crc32(data)) + data
    page[_PLACE_START : _PLACE_START + len(whole)] = whole
    return bool(data)


def tick(page: memoryview) -> None:
    """Note that the storage has done something for the saver, which writes from the buffers."""
    words = page.cast("Q")
    words[_PROGRESS_START // 8] = (words[_PROGRESS_START // 8] + 1) % (1 << 64)


def progress(page: memoryview) -> int:
    """Return a number that changes when the storage has done something for the saver."""
    return int(page.cast("Q")[_PROGRESS_START // 8])


def address_of(pid: int) -> bytes:
    """Return the address at which the agent of a process id hands out buffers."""
    return agent_socket.address_of("snapshots", pid)
