"""Values in the state as bytes and as digests: equal bits have equal digests on any device."""

import ctypes
import io
import json
import pickle
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .copying import local

_SAMPLED_BYTES = 1 << 20
"""In larger tensors, evenly spaced elements are sampled if a digest need not be exact."""
_SAMPLES = 1024
_HEADER = struct.Struct("<8sIQQ")
"""Magic, checksum of the rest, its length, and the length of its head (JSON)."""
_MAGIC = b"ftrranks"
SLOT_KEY = "ft_run_ranks.values"
"""Flat key of the packed values."""


def leaves(value: Any) -> Iterator[Any]:
    """Yield the keys and values of nested dictionaries, lists and tuples."""
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
    """Return a digest of 32 bits of ``leaves``; unless it is exact, large tensors are sampled."""
    found = 0
    for value in values:
        found = zlib.crc32(_bytes_of(value, is_exact=is_exact), found)
    return found


def has_shards(value: Any) -> bool:
    """Return whether a nested state dict has a DTensor, whose parts differ by design."""
    return any(isinstance(one, DTensor) for one in leaves(value))


class _Pickler(pickle.Pickler):
    """Pickles tensors by their bytes: torch's pickles contain the address of the storage."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) not in (torch.Tensor, nn.Parameter) or not _is_dense(obj):
            return NotImplemented
        about = (str(obj.dtype), obj.device.type, tuple(obj.shape))
        return type(obj), (*about, bytes_of(obj.cpu()))


def pickled(value: Any) -> bytes:
    """Return the pickle of a value, the same on all ranks for equal values of plain types.

    It is only for comparisons: it cannot be loaded if there are tensors.

    Without the memo of ``pickle.dumps``, it does not depend on which parts are the same object.
    Sets are sorted, because their order depends on the process.
    """
    if type(value) in (set, frozenset):
        value = (type(value).__name__, sorted(value, key=repr))
    data = io.BytesIO()
    pickler = _Pickler(data)
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
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def packed(step: int, payloads: Sequence[bytes]) -> bytes:
    """Pack the payloads of all ranks, results of ``serialized`` by rank."""
    head = json.dumps({"step": step, "lengths": [len(one) for one in payloads]}).encode()
    data = b"".join([head, *payloads])
    return _HEADER.pack(_MAGIC, zlib.crc32(data), len(data), len(head)) + data


def unpacked(slot: torch.Tensor, step: int, rank: int) -> dict[str, Any]:
    """Return a rank's payload in a result of ``packed``; empty if there is none of this step."""
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
    try:
        found: dict[str, Any] = torch.load(payload, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # a checkpoint is trusted, as in torch.distributed.checkpoint
        payload.seek(0)
        found = torch.load(payload, map_location="cpu", weights_only=False)
    return found


# --- digests of tensors --------------------------------------------------------------------------

_WORD_BYTES = 8
_DIGEST_BYTES = 1 << 26
"""Number of bytes of a non-contiguous tensor that are copied at a time."""


def digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the digest of each tensor, with one transfer per device; raises like ``digest``."""
    return numbers_of([digest(tensor) for tensor in tensors])


def numbers_of(found: Sequence[torch.Tensor]) -> list[int]:
    """Return the values of several digests, with one transfer from each device."""
    places: dict[torch.device, list[int]] = {}
    for place, value in enumerate(found):
        places.setdefault(value.device, []).append(place)
    numbers = [0] * len(found)
    for those in places.values():
        values = torch.stack([found[place] for place in those]).tolist()
        for place, number in zip(those, values, strict=True):
            numbers[place] = number
    return numbers


@torch.no_grad()
def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of a tensor, as a scalar on its device.

    It is the sum of the data as 64-bit words, modulo 2**64. The last word is padded with zeros; the
    elements are in their logical order, regardless of the strides. For a sharded tensor it covers
    this rank's part; shape and dtype are not part of it.

    Raises:
        ValueError: If the tensor has no data that can be read.
    """
    if isinstance(tensor, DTensor):
        return digest(tensor.to_local())
    any_tensor: Any = tensor
    if is_traceable_wrapper_subclass(any_tensor):  # e.g. quantized: its parts hold the data
        parts = [digest(getattr(any_tensor, name)) for name in any_tensor.__tensor_flatten__()[0]]
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()
    if not _is_dense(tensor):
        raise ValueError(
            f"invalid tensor of type {type(tensor).__name__} ({tensor.layout}, {tensor.device}): "
            "expected a dense one that has data"
        )
    part = tensor.detach().resolve_conj().resolve_neg()
    start = part.storage_offset() * part.element_size()
    if part.is_contiguous() and start % _WORD_BYTES == 0:
        return _sum(part)
    if not part.dim():
        return _sum(part.clone())
    row_bytes = max(1, part.nbytes // max(1, part.shape[0]))
    rows = max(1, _DIGEST_BYTES // row_bytes // _WORD_BYTES) * _WORD_BYTES  # whole words
    pieces = torch.split(part, rows)
    return torch.stack(
        [_sum(piece.clone(memory_format=torch.contiguous_format)) for piece in pieces]
    ).sum()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an array that has data."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if tensor.is_meta:
        return False
    return not tensor.numel() or bool(tensor.untyped_storage().nbytes() and tensor.data_ptr())


def _sum(part: torch.Tensor) -> torch.Tensor:
    data = part.view(-1).view(torch.uint8)
    whole = data.numel() // _WORD_BYTES * _WORD_BYTES
    total = data[:whole].view(torch.int64).sum()
    if whole < data.numel():
        last = data.new_zeros(_WORD_BYTES)
        last[: data.numel() - whole] = data[whole:]
        total += last.view(torch.int64)[0]
    return total
