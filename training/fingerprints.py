"""Short texts that are equal for equal values, for comparisons between processes."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .checkpoints.values import digests, pickled

_SHORT = (str, int, float, bool, type(None))
_LENGTH = 50
_DEPTH = 20


def fingerprint(value: Any) -> dict[str, str]:
    """Return the leaves of a nested value, by path: tensors by digest, plain values as text."""
    all_leaves = dict(leaves(value))
    tensors = {path: leaf for path, leaf in all_leaves.items() if isinstance(leaf, torch.Tensor)}
    found = {path: _text(leaf) for path, leaf in all_leaves.items() if path not in tensors}
    try:
        numbers = digests(list(tensors.values()))
    except ValueError:  # a tensor has no data
        numbers = [_digest_or_zero(tensor) for tensor in tensors.values()]
    for (path, tensor), number in zip(tensors.items(), numbers, strict=True):
        kind = f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
        found[path] = f"{kind} {number & (1 << 64) - 1:016x}"
    return found


def _digest_or_zero(tensor: torch.Tensor) -> int:
    try:
        return digests([tensor])[0]
    except ValueError:
        return 0


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf of nested dictionaries, lists and tuples."""
    if isinstance(value, Mapping) and value and depth < _DEPTH:
        for key, inner in value.items():
            yield from leaves(
                inner, f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]", depth + 1
            )
    elif isinstance(value, list | tuple) and value and depth < _DEPTH:
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]", depth + 1)
    else:
        yield path.removeprefix("."), value


def _text(leaf: Any) -> str:
    if isinstance(leaf, _SHORT) and len(text := repr(leaf)) < _LENGTH:
        return text
    try:
        return f"{type(leaf).__name__} {zlib.crc32(pickled(leaf)):08x}"
    except Exception:  # a value of any class may be in the state
        return type(leaf).__name__
