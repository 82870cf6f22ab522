"""The record of a checkpoint: who wrote it, and a checksum of each value. Does not import torch.

It is a file next to those of ``torch.distributed.checkpoint``, which do not need it.
"""

import json
import os
import socket
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

NAME = ".ft_run"
"""The name of the file in a checkpoint."""
JOB_VARIABLE = "TORCHELASTIC_RUN_ID"

Checksum = tuple[int, int]
"""End of a value in its file, in bytes, and the CRC-32 from the end of the previous value."""


class Record(NamedTuple):
    """Content of the file."""

    job: str
    """Job ID, empty if unknown."""
    attempt: str
    """Attempt to write the checkpoint."""
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
    """Return a record.

    Raises:
        ValueError: If it is damaged.
    """
    checksum, _, rest = data.partition(b"\n")
    if int(checksum, 16) != zlib.crc32(rest):
        raise ValueError("its checksum does not match")
    known = json.loads(rest)
    return Record(**{name: known[name] for name in Record._fields})


def checksums(data: memoryview, ends: Iterable[int]) -> list[Checksum]:
    """Return the checksums of the values in a file.

    Args:
        data: content of the file.
        ends: end of each value, in bytes.
    """
    found, start = [], 0
    for end in ends:
        found.append((end, zlib.crc32(data[start:end])))
        start = end
    return found


def this_job() -> str:
    """Return the ID of this worker's job, empty if it has none."""
    return os.environ.get(JOB_VARIABLE, "")


def tag_of(job: str) -> str:
    """Return the name of a job in temporary names: letters and digits."""
    return f"{zlib.crc32(job.encode()):08x}" if job else ""
