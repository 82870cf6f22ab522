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
from torch.distributed.tensor import DTensor

from .late_copy import local

_SAMPLED_BYTES = 1 << 20
"""Of larger tensors, evenly spaced elements stand for all where a digest need not be exact."""
_SAMPLES = 1024
_HEADER = struct.Struct("<8sIQQ")
"""Magic, checksum of what follows, its length, and the length of its head (JSON)."""
_MAGIC = b"ftrranks"
SLOT_KEY = "ft_run_ranks.values"
"""The flat key of the packed values."""


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


def digest_of(values: Iterable[Any], *, is_exact: bool = True) -> int:
    """Return a digest of 32 bits of plain values and tensors.

    Args:
        values: from ``leaves``.
        is_exact: whether to read all of large tensors, instead of a sample.
    """
    found = 0
    for value in values:
        found = zlib.crc32(_bytes_of(value, is_exact=is_exact), found)
    return found


def has_shards(value: Any) -> bool:
    """Return whether a nested state dict has a DTensor: its parts differ, but not by mistake."""
    return any(isinstance(one, DTensor) for one in leaves(value))


def pickled(value: Any) -> bytes:
    """Return the pickle of a value, the same on all ranks for equal values of plain types.

    Without the memo of ``pickle.dumps`` it does not depend on which parts are the same object. The
    order of a set depends on the process.
    """
    if type(value) in (set, frozenset):
        value = (type(value).__name__, sorted(value, key=repr))
    data = io.BytesIO()
    pickler = pickle.Pickler(data)
    pickler.fast = True
    try:
        pickler.dump(value)
    except (ValueError, RecursionError):  # it contains itself
        return pickle.dumps(value)
    return data.getvalue()


def _bytes_of(value: Any, *, is_exact: bool) -> bytes:
    if not isinstance(value, torch.Tensor):
        return pickled(value)
    part, shape = local(value).detach(), f"{value.dtype} {list(value.shape)}".encode()
    if part.nbytes > _SAMPLED_BYTES and not is_exact:
        flat = part.flatten()
        part = flat[:: max(1, flat.numel() // _SAMPLES)]
    return shape + bytes_of(part.cpu())


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor on the CPU."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def packed(step: int, payloads: Sequence[bytes]) -> bytes:
    """Return the payloads of all ranks, by rank, as one.

    Args:
        step: completed steps.
        payloads: from ``serialized``.
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
    found: dict[str, Any] = torch.load(payload, map_location="cpu", weights_only=False)
    return found
