"""The page in which a worker says what its two buffers hold, and the address where it gets them.

A worker writes the page, the agent of its node reads it, also when the worker is dead: each buffer
has an entry, which is made void before the buffer is touched and written after it is complete. An
entry with a wrong checksum is void.
"""

import os
import struct
import zlib
from typing import NamedTuple

PAGE_BYTES = 4096
BUFFERS = 4
"""Two are used; with ``--snapshot-replicas`` more where the network is slow."""
REQUEST = struct.Struct("<8sI")
"""What a worker asks with: ``MAGIC`` and its rank."""
REPLY = struct.Struct("<8sq")
"""What it is answered, with the page and the buffers as descriptors: ``MAGIC`` and the step that
all ranks resume from; -1: none."""
REPLICA = struct.Struct("<8sIH")
"""What it asks with for memory for other ranks' shares: ``MAGIC``, its rank and a number from 1."""
MAGIC = b"ftrsnap1"

_ENTRY = struct.Struct("<8sQQIIQQ?")
_CHECKSUM = struct.Struct("<I")
_ENTRY_BYTES = 512
_VOID = bytes(_ENTRY.size + _CHECKSUM.size)


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


def address_of(pid: int) -> bytes:
    """Return the address at which an agent hands out buffers: a name that is in no folder.

    Args:
        pid: the agent's process id, in the namespace of this process.
    """
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return b"\0ft-run-snapshots-%d-%d" % (namespace, pid)
