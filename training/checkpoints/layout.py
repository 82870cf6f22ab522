"""What stands where in a snapshot's file: it is behind the file, as JSON, for worker and saver.

It imports no torch.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple


class Description(NamedTuple):
    """What makes files a checkpoint; it is behind the first one."""

    metadata: bytes = b""
    """Of ``torch.distributed.checkpoint``; empty: there is none yet."""
    digests: tuple[str, ...] = ()
    """Of what stands where in each rank's file, by rank; none: this file is the only one."""


def packed(items: Sequence[Any], description: Description) -> bytes:
    """Return what follows a file."""
    metadata = base64.b64encode(description.metadata).decode()
    known = {"items": items, "metadata": metadata, "digests": description.digests}
    return json.dumps(known, separators=(",", ":")).encode()


def unpacked(data: bytes) -> tuple[list[Any], Description]:
    """Return what ``packed`` was given, as lists."""
    known = json.loads(data)
    metadata = base64.b64decode(known["metadata"])
    return known["items"], Description(metadata, tuple(known.get("digests", ())))


def digest(items: Sequence[Any]) -> str:
    """Return what two files have in common if the same stands in the same places."""
    return hashlib.sha256(json.dumps(items, separators=(",", ":")).encode()).hexdigest()
