"""The values of several ranks as bytes: compared by digests, and packed into one tensor."""

import ctypes
import io
import json
import pickle
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .late_copy import local

_SAMPLED_BYTES = 1 << 20
"""Of larger tensors, evenly spaced elements stand for all: digests are made at each step."""
_SAMPLES = 1024
_HEADER = struct.Struct("<8sIQQ")
"""Magic, checksum of what follows, its length, and the length of its head (JSON)."""
_MAGIC = b"ftrranks"


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values of nested dictionaries, lists and tuples, and the keys."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def digest_of(values: Iterable[Any]) -> int:
    """Return a digest of 32 bits of plain values and tensors; large tensors are sampled."""
    found = 0
    for value in values:
        found = zlib.crc32(_bytes_of(value), found)
    return found


def _bytes_of(value: Any) -> bytes:
    part = local(value)
    if not isinstance(part, torch.Tensor):
        return pickle.dumps(value)
    part = part.detach()
    if part.nbytes > _SAMPLED_BYTES:
        flat = part.flatten()
        part = flat[:: max(1, flat.numel() // _SAMPLES)]
    return bytes_of(part.cpu())


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor on the CPU."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def dumped(value: Any) -> bytes:
    """Return a nested state dict as bytes."""
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def packed(step: int, payloads: Sequence[bytes]) -> bytes:
    """Return the payloads of all ranks, by rank, as one.

    Args:
        step: completed steps.
        payloads: from ``dumped``.
    """
    head = json.dumps({"step": step, "lengths": [len(one) for one in payloads]}).encode()
    data = b"".join([head, *payloads])
    return _HEADER.pack(_MAGIC, zlib.crc32(data), len(data), len(head)) + data


def unpacked(slot: torch.Tensor, step: int, rank: int) -> dict[str, Any]:
    """Return the payload of a rank; empty: there is none of this step.

    Args:
        slot: begins with the bytes of ``packed``.
        step: completed steps.
        rank: whose payload is wanted.
    """
    whole = bytes_of(slot)
    magic, checksum, length, head_length = _HEADER.unpack_from(whole)
    data = whole[_HEADER.size : _HEADER.size + length]
    if magic != _MAGIC or zlib.crc32(data) != checksum:
        return {}
    head = json.loads(data[:head_length])
    if head["step"] != step or rank >= len(head["lengths"]):
        return {}
    begin = head_length + sum(head["lengths"][:rank])
    payload = io.BytesIO(data[begin : begin + head["lengths"][rank]])
    # A checkpoint is trusted, as by torch.distributed.checkpoint.
    found: dict[str, Any] = torch.load(payload, weights_only=False)
    return found
