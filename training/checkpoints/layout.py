"""Descriptions of the files of a snapshot or checkpoint. Does not import torch.

The layout of a snapshot's file is appended to it as JSON for the saver. The record of a checkpoint
contains the job and host that wrote it, and a checksum of each value. It is an extra file that
``torch.distributed.checkpoint`` does not need.
"""

import base64
import hashlib
import json
import os
import socket
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Description(NamedTuple):
    """Data that turns files into a checkpoint; only the first file's layout has the metadata."""

    metadata: bytes = b""
    """Metadata file of ``torch.distributed.checkpoint``; empty until it is built."""
    digests: tuple[str, ...] = ()
    """Digests of the layouts of all files, by rank; empty if this is the only file."""
    saved: int | None = None
    """Number of leading values that a checkpoint needs; rank 0's file has the others. None for
    all."""


def packed(items: Sequence[Any], description: Description) -> bytes:
    """Return a layout as bytes."""
    metadata = base64.b64encode(description.metadata).decode()
    known = {"items": items, **description._asdict(), "metadata": metadata}
    return json.dumps(known, separators=(",", ":")).encode()


def unpacked(data: bytes) -> tuple[list[Any], Description]:
    """Return the arguments of ``packed``, with lists instead of tuples."""
    known = json.loads(data)
    metadata = base64.b64decode(known["metadata"])
    digests = tuple(known.get("digests", ()))
    return known["items"], Description(metadata, digests, known.get("saved"))


def digest(items: Sequence[Any]) -> str:
    """Return the digest of a layout."""
    return hashlib.sha256(json.dumps(items, separators=(",", ":")).encode()).hexdigest()


# --- the record of a checkpoint ------------------------------------------------------------------

RECORD_NAME = ".ft_run"
JOB_VARIABLE = "TORCHELASTIC_RUN_ID"

Checksum = tuple[int, int]
"""End of a value in its file, in bytes, and the CRC-32 from the end of the previous value."""


class Record(NamedTuple):
    """Content of the file ``RECORD_NAME``."""

    job: str
    """Job ID, empty if unknown."""
    attempt: str
    """Name of the attempt to write the checkpoint."""
    host: str
    time: float
    """Seconds since the epoch."""
    files: Mapping[str, list[Checksum]]
    """Checksums of all values, by file, in the order of the values."""


def record_of(job: str, attempt: str, files: Mapping[str, list[Checksum]]) -> bytes:
    """Return the record of a checkpoint that this host writes now, as bytes."""
    record = Record(job, attempt, socket.gethostname(), round(time.time(), 3), files)
    data = json.dumps(record._asdict(), separators=(",", ":")).encode()
    return f"{zlib.crc32(data):08x}\n".encode() + data


def read_record(data: bytes) -> Record:
    """Parse a record; raise ``ValueError`` if it is damaged."""
    checksum, _, rest = data.partition(b"\n")
    if int(checksum, 16) != zlib.crc32(rest):
        raise ValueError("its checksum does not match")
    known = json.loads(rest)
    return Record(**{name: known[name] for name in Record._fields})


def checksums_of(data: memoryview, ends: Iterable[int]) -> list[Checksum]:
    """Return the checksums of the values in a file, given the end of each in bytes."""
    found, start = [], 0
    for end in ends:
        found.append((end, zlib.crc32(data[start:end])))
        start = end
    return found


def this_job() -> str:
    """Return the ID of this worker's job; empty if it has none."""
    return os.environ.get(JOB_VARIABLE, "")


def tag_of(job: str) -> str:
    """Return the tag of a job in temporary names: hexadecimal digits."""
    return f"{zlib.crc32(job.encode()):08x}" if job else ""
