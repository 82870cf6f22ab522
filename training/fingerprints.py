"""Short strings that are equal for equal values, for comparisons between processes."""

import zlib
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from .checkpoints.values import digest, pickled

_LENGTH = 50


def fingerprint(value: Any) -> dict[str, str]:
    """Return the leaves of a nested value, by path: tensors by digest, short values as text."""
    return {keystr(path): _text(leaf) for path, leaf in tree_flatten_with_path(value)[0]}


def _text(leaf: Any) -> str:
    try:
        if isinstance(leaf, torch.Tensor):
            return f"{leaf.dtype} {list(leaf.shape)} {int(digest(leaf)) & (1 << 64) - 1:016x}"
        if isinstance(leaf, str | int | float | None) and len(text := repr(leaf)) < _LENGTH:
            return text
        return f"{type(leaf).__name__} {zlib.crc32(pickled(leaf)):08x}"
    except Exception:  # a value of any class, and a tensor without data, can be in the state
        return type(leaf).__name__
