"""Digests of tensors: equal bits have equal digests, wherever the tensors are."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_WORD_BYTES = 8
_PIECE_BYTES = 1 << 26
"""What is copied at a time of a tensor that is not contiguous."""


def digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the digest of each tensor, with one transfer from each device.

    Raises:
        ValueError: as in ``digest``.
    """
    found = [digest(tensor) for tensor in tensors]
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
    elements are in their logical order, whatever the strides. Of a sharded tensor it covers this
    rank's part; shape and type are not part of it.

    Raises:
        ValueError: the tensor has no data that could be read.
    """
    if isinstance(tensor, DTensor):
        return digest(tensor.to_local())
    any_tensor: Any = tensor
    if is_traceable_wrapper_subclass(any_tensor):  # e.g. quantized: the data is in its parts
        parts = [digest(getattr(any_tensor, name)) for name in any_tensor.__tensor_flatten__()[0]]
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()
    if tensor.layout is not torch.strided or tensor.is_quantized or not _has_data(tensor):
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
    rows = max(1, _PIECE_BYTES // row_bytes // _WORD_BYTES) * _WORD_BYTES  # whole words
    pieces = torch.split(part, rows)
    return torch.stack(
        [_sum(piece.clone(memory_format=torch.contiguous_format)) for piece in pieces]
    ).sum()


def _has_data(tensor: torch.Tensor) -> bool:
    if tensor.is_meta:
        return False
    return not tensor.numel() or bool(tensor.untyped_storage().nbytes() and tensor.data_ptr())


def _sum(part: torch.Tensor) -> torch.Tensor:
    """Return the sum of the words of a contiguous tensor."""
    data = part.view(-1).view(torch.uint8)
    whole = data.numel() // _WORD_BYTES * _WORD_BYTES
    total = data[:whole].view(torch.int64).sum()
    if whole < data.numel():
        last = data.new_zeros(_WORD_BYTES)
        last[: data.numel() - whole] = data[whole:]
        total += last.view(torch.int64)[0]
    return total
