"""Tensors that several ranks have in common, and the distance between their values."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .copying import local
from .state import State
from .values import digest, numbers_of

SLOTS = 3
"""Number of sets of ranks that are compared per object."""


def checksum(text: str) -> int:
    """Return a checksum of 62 bits, never 0."""
    whole = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(whole, "little") >> 2 | 1


OF_ALL = checksum(repr(()))
"""Identifier of the share that all ranks have in common."""


class Share(NamedTuple):
    """Tensors of one object that the same ranks hold with the same data."""

    holders: tuple[int, ...]
    """Ranks that hold the tensors; empty for all ranks."""
    digests: dict[str, int]
    """Digest of each tensor, by key."""


class CommonTensors(NamedTuple):
    """Tensors of one object that several ranks should have in common."""

    values: dict[str, torch.Tensor]
    """This rank's part of each tensor, by key."""
    shares: list[Share]
    is_sharded: bool
    """Whether other tensors of the object differ between ranks by design."""

    @property
    def digests(self) -> dict[str, int]:
        """Digest of each tensor, by key."""
        return {key: number for share in self.shares for key, number in share.digests.items()}


class Row(NamedTuple):
    """Digests of one tensor on the ranks that hold it."""

    key: int
    """Checksum of the key."""
    by_rank: dict[int, int]

    @property
    def odd(self) -> int | None:
        """The only rank of at least three whose digest differs; None if there is no such rank."""
        (_, times), *rest = Counter(self.by_rank.values()).most_common()
        if not rest or len(self.by_rank) < 3 or times != len(self.by_rank) - 1:
            return None
        return next(rank for rank, value in self.by_rank.items() if value == rest[0][0])


def tensors_of(state: State, name: str) -> list[tuple[str, torch.Tensor]]:
    """Return the weights of a module, or the tensors in the state of an optimizer, by key."""
    if name in state.optimizers:
        return [*_leaves(state.optimizers[name].collect(), "")]
    module: nn.Module = state.objects[name]
    weights = {key for key, _ in module.named_parameters(remove_duplicate=False)}
    return [
        (key, value)
        for key, value in module.state_dict().items()
        if key in weights and isinstance(value, torch.Tensor)
    ]


def common_tensors(
    tensors: Sequence[tuple[str, torch.Tensor]], size: int, common: Collection[int] | None
) -> CommonTensors:
    """Return the tensors that several ranks should have in common, with their digests.

    ``common``: checksums of the keys that all ranks have; None for all keys.
    """
    values: dict[str, torch.Tensor] = {}
    places: dict[str, tuple[int, ...]] = {}
    scalars: list[torch.Tensor] = []
    is_sharded = False
    for key, value in tensors:
        holders = _holders(value, size)
        is_sharded |= bool(holders)
        if len(holders) == 1 or (
            not holders and common is not None and checksum(key) not in common
        ):
            continue
        try:
            scalars.append(digest(value))
        except ValueError:  # without data, e.g. the state of an 8-bit optimizer
            continue
        values[key], places[key] = local(value).detach(), holders
    shares: dict[tuple[int, ...], Share] = {}
    for (key, holders), number in zip(places.items(), numbers_of(scalars), strict=True):
        shares.setdefault(holders, Share(holders, {})).digests[key] = number
    order = sorted(shares.values(), key=_precedence)
    return CommonTensors(values, order[:SLOTS], is_sharded)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path.removeprefix("."), value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{index}")


def _holders(value: torch.Tensor, size: int) -> tuple[int, ...]:
    """Return the ranks that have the same data as this rank; empty for all ranks."""
    if not isinstance(value, DTensor):
        return ()
    coordinates = value.device_mesh.get_coordinate()
    if coordinates is None:
        return (-1,)
    index = tuple(
        slice(None) if isinstance(placement, Replicate) else coordinate
        for placement, coordinate in zip(value.placements, coordinates, strict=True)
    )
    found = tuple(sorted(value.device_mesh.mesh[index].flatten().tolist()))
    return () if len(found) == size else found


def _precedence(share: Share) -> tuple[bool, int, tuple[int, ...]]:
    """Sort key: shares of all ranks first, then larger sets of ranks before smaller ones."""
    return bool(share.holders), -len(share.holders), share.holders


def summary(shares: Sequence[Share]) -> list[int]:
    """Return an identifier and a digest of each share, padded with zeros."""
    found = [
        number
        for share in shares
        for number in (checksum(repr(share.holders)), checksum(repr(sorted(share.digests.items()))))
    ]
    return found + [0] * (2 * SLOTS - len(found))


def differs(rows: Sequence[Sequence[int]]) -> bool:
    """Return whether a share differs between ranks, given the ``summary`` of each rank."""
    found: dict[int, int] = {}
    pairs = [pair for row in rows for pair in zip(row[::2], row[1::2], strict=True) if pair[0]]
    count = sum(share == OF_ALL for share, _ in pairs)
    return 0 < count < len(rows) or any(found.setdefault(*pair) != pair[1] for pair in pairs)


@torch.no_grad()
def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to contiguous memory on the CPU."""
    any_tensor: Any = tensor
    if is_traceable_wrapper_subclass(any_tensor) and hasattr(any_tensor, "dequantize"):
        tensor = any_tensor.dequantize()
    return tensor.to("cpu", copy=True).contiguous()


def distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the distance of two tensors relative to the norm of the second, at most 1.0."""
    kind = torch.complex128 if mine.is_complex() else torch.float64
    mine, theirs = mine.view(-1).to(kind), theirs.to(kind)
    is_same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    length = float(torch.where(is_same, 0, mine - theirs).abs().norm())
    norm = float(theirs[theirs.isfinite()].norm())
    share = length / norm if norm > 0 else float(length != 0)
    return min(share, 1.0) if share == share else 1.0


def precision(tensor: torch.Tensor | None) -> float:
    """Return the relative distance of adjacent values of a tensor; 0.0 if unknown."""
    if tensor is None or not tensor.is_floating_point():
        return 0.0
    return torch.finfo(tensor.dtype).eps
