"""The layout of a snapshot's file, appended to it as JSON for the saver. Does not import torch."""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple


class Description(NamedTuple):
    """What turns files into a checkpoint; it is in the layout of the first file."""

    metadata: bytes = b""
    """The metadata file of ``torch.distributed.checkpoint``; empty: not made yet."""
    digests: tuple[str, ...] = ()
    """Of the layouts of all files, by rank; empty: this is the only file."""


def packed(items: Sequence[Any], description: Description) -> bytes:
    """Return a layout as bytes."""
    metadata = base64.b64encode(description.metadata).decode()
    known = {"items": items, "metadata": metadata, "digests": description.digests}
    return json.dumps(known, separators=(",", ":")).encode()


def unpacked(data: bytes) -> tuple[list[Any], Description]:
    """Return the arguments of ``packed``, with lists instead of tuples."""
    known = json.loads(data)
    metadata = base64.b64decode(known["metadata"])
    return known["items"], Description(metadata, tuple(known.get("digests", ())))


def digest(items: Sequence[Any]) -> str:
    """Return the digest of a layout."""
    return hashlib.sha256(json.dumps(items, separators=(",", ":")).encode()).hexdigest()
