"""Compares the weights and the optimizer state of all ranks, which are equal or sharded.

A difference is an error before rank 0's values are saved for all. A tensor that only one rank has
changed is corrupt there. Buffers, extra states and other objects may differ (``rank_state.py``).
"""

import hashlib
import os
import socket
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..ranks import Ranks
from ..worker.log import log
from .copying import local
from .state import State, without_wrappers
from .values import digest, numbers_of

_EVERY_STEPS = 100
_COST_MAX = 0.001
"""Share of the time that comparisons may take before they become rarer."""
_SMALL = 1e-5
"""Relative difference of a tensor that is only a warning: kernels of different GPUs round
differently, which has been measured as 2e-7 of the weights after 10,000 steps of AdamW."""
_NAMES_MAX = 64
_SLOTS = 3
"""Number of sets of ranks that are compared per object."""


class UnequalStateError(RuntimeError):
    """Raised on all ranks if state that should be equal differs between them."""


class CorruptStateError(RuntimeError):
    """Raised on the only rank whose state differs from all others' and was equal before."""


class _Share(NamedTuple):
    """Tensors of one object of which the same ranks have the same data."""

    holders: tuple[int, ...]
    """These ranks; empty for all ranks."""
    digests: dict[str, int]
    """Digest of each tensor, by key."""


class _Tensors(NamedTuple):
    """Tensors of one object that several ranks should have in common."""

    values: dict[str, torch.Tensor]
    """This rank's part of each tensor, by key."""
    shares: list[_Share]
    is_sharded: bool
    """Whether other tensors of the object differ between ranks by design."""


class _Row(NamedTuple):
    """Digests of one tensor on the ranks that hold it."""

    key: int
    """Checksum of the key."""
    by_rank: dict[int, int]

    @property
    def odd(self) -> int | None:
        """The only rank that differs from all others, of at least three; None if there is none."""
        (_, times), *rest = Counter(self.by_rank.values()).most_common()
        if not rest or len(self.by_rank) < 3 or times != len(self.by_rank) - 1:
            return None
        return next(rank for rank, value in self.by_rank.items() if value == rest[0][0])


class Equality:
    """Compares the state of the ranks from time to time. All ranks call the methods together."""

    def __init__(
        self,
        ranks: Ranks,
        state: State,
        discard: Callable[[], object],
        *,
        unequal: Literal["error", "warn"],
        every: int | None,
    ) -> None:
        """Agree on the objects that all ranks have.

        Args:
            ranks: ranks of the job.
            state: state of the script.
            discard: function that discards the snapshots of this rank, called before an error.
            unequal: whether a difference is an error or a warning.
            every: number of steps between comparisons; None for 100, or more if they take long.

        Raises:
            ValueError: If the value of an argument is invalid.
        """
        if unequal not in ("error", "warn"):
            raise ValueError(f"invalid value {unequal!r} for unequal: expected 'error' or 'warn'")
        if every is not None and (not isinstance(every, int) or every is True or every < 1):
            raise ValueError(
                f"invalid value {every!r} for verify_every: expected a number of steps >= 1"
            )
        self._ranks, self._state, self._discard = ranks, state, discard
        self._warns = unequal == "warn"
        self._every, self._is_fixed = every or _EVERY_STEPS, every is not None
        self._names = self._common_names()
        """Modules, then optimizers."""
        self._verified = -1
        """Step of the last comparison in this process; -1 if none."""
        self._was_equal: frozenset[str] = frozenset()
        """Objects that were equal in the last comparison."""
        self._settled: set[str] = set()
        """Objects that are no longer compared, after a warning."""
        self._common: dict[str, set[int]] = {}
        """Checksums of the keys that all ranks have, for sharded objects if other keys differ."""
        self._has_warned_of_small = self._has_logged_cost = False
        self._verified_s, self._exchange_s = 0.0, 0.0

    def _common_names(self) -> list[str]:
        objects, optimizers = self._state.objects, self._state.optimizers
        mine = [*sorted(n for n in objects if isinstance(objects[n], nn.Module))]
        mine = [*mine, *sorted(optimizers)][:_NAMES_MAX]
        sums = [zlib.crc32(name.encode()) for name in mine]
        rows = self._ranks.all_gather(*sums, *[-1] * (_NAMES_MAX - len(sums)))
        common = set(rows[0]).intersection(*rows)
        return [name for name, checksum in zip(mine, sums, strict=True) if checksum in common]

    def resume(self) -> None:
        """Note that each rank resumes from its own snapshot: the state was equal before."""
        self._was_equal = frozenset(self._names)

    def is_due(self, step: int) -> bool:
        """Return whether to compare at a step: the first one in this process, and every so often.

        Args:
            step: number of completed steps.
        """
        return self._verified < 0 or not 0 <= step - self._verified < self._every

    def verify(self, step: int, *, is_changed: bool = False) -> None:
        """Compare the state of all ranks, unless this was done at this step.

        Args:
            step: number of completed steps.
            is_changed: whether the state can have changed since the comparison at this step.

        Raises:
            CorruptStateError: If this rank's state has become different from all others'.
            UnequalStateError: If the state differs between ranks.
        """
        names = [name for name in self._names if name not in self._settled]
        if self._ranks.size == 1 or not names or (self._verified == step and not is_changed):
            return
        found = {name: self._tensors_of(name) for name in names}
        _synchronize(found)
        begin = time.monotonic()
        digests = {name: self._shares_of(name, one) for name, one in found.items()}
        row = [number for one in digests.values() for number in _summary(one.shares)]
        took_s, since_s = time.monotonic() - begin, begin - self._verified_s
        times = [int(one * 1e6) for one in (took_s, self._exchange_s, since_s)]
        begin = time.monotonic()
        rows = self._ranks.all_gather(*times, *row)
        self._exchange_s = time.monotonic() - begin
        steps, self._verified = step - self._verified, step
        if self._verified_s and not self._is_fixed and steps > 0:
            cost_us = max(row[0] for row in rows) + min(row[1] for row in rows)
            self._limit_cost(cost_us / max(1, rows[0][2]) * steps)
        width = 2 * _SLOTS
        places = ((n, 3 + index * width) for index, n in enumerate(names))
        differing = [
            name for name, place in places if _differs([r[place : place + width] for r in rows])
        ]
        was_equal, self._was_equal = self._was_equal, frozenset(names) - {*differing}
        for name in differing:
            if name not in self._settled:
                self._explain(name, digests[name], was_equal=name in was_equal, all_of=differing)
        self._verified_s = time.monotonic()

    def _tensors_of(self, name: str) -> list[tuple[str, torch.Tensor]]:
        """Return the weights of a module, or the state of an optimizer, by key."""
        if name in self._state.optimizers:
            return [*_leaves(self._state.optimizers[name].collect(), "")]
        module: nn.Module = self._state.objects[name]
        weights = {key for key, _ in module.named_parameters(remove_duplicate=False)}
        return [
            (key, value)
            for key, value in module.state_dict().items()
            if key in weights and isinstance(value, torch.Tensor)
        ]

    def _shares_of(self, name: str, tensors: list[tuple[str, torch.Tensor]]) -> _Tensors:
        """Return the tensors that several ranks should have in common, with their digests."""
        common = self._common.get(name)
        values: dict[str, torch.Tensor] = {}
        places: dict[str, tuple[int, ...]] = {}
        scalars: list[torch.Tensor] = []
        is_sharded = False
        for key, value in tensors:
            holders = _holders(value, self._ranks.size)
            is_sharded |= bool(holders)
            if len(holders) == 1 or (
                not holders and common is not None and _sum(key) not in common
            ):
                continue
            try:
                scalars.append(digest(value))
            except ValueError:  # without data, e.g. the state of an 8-bit optimizer
                continue
            values[key], places[key] = local(value).detach(), holders
        shares: dict[tuple[int, ...], _Share] = {}
        for (key, holders), number in zip(places.items(), numbers_of(scalars), strict=True):
            shares.setdefault(holders, _Share(holders, {})).digests[key] = number
        order = sorted(shares.values(), key=_precedence)
        return _Tensors(values, order[:_SLOTS], is_sharded)

    def _limit_cost(self, cost: float) -> None:
        """Compare half as often if it takes too long.

        Args:
            cost: time of a comparison, in steps.
        """
        if cost / self._every <= _COST_MAX:
            return
        if self._ranks.rank == 0 and not self._has_logged_cost:
            log(
                f"comparing the state of the ranks every {self._every} steps takes "
                f"{cost / self._every:.1%} of the time: it is done more rarely, until it takes "
                f"{_COST_MAX:.1%}; verify_every sets a fixed number of steps"
            )
        self._has_logged_cost = True
        self._every *= 2

    # --- differences -----------------------------------------------------------------------------

    def _explain(
        self, name: str, tensors: _Tensors, *, was_equal: bool, all_of: Sequence[str]
    ) -> None:
        """Find the first tensor of an object that differs, and raise or warn.

        Args:
            name: name of the object.
            tensors: its tensors on this rank.
            was_equal: whether it was equal in the last comparison.
            all_of: names of all objects that differ.
        """
        table, partial = self._gather(tensors)
        keys = {_sum(key): key for key in tensors.values}
        if partial:
            if self._ranks.maximum(int(tensors.is_sharded))[0]:
                shared = {row.key for row in table if len(row.by_rank) == self._ranks.size}
                self._common[name] = shared - {row.key for row in partial}
            else:
                key = self._key_of(partial[0], keys)
                lack = next(r for r in range(self._ranks.size) if r not in partial[0].by_rank)
                self._refuse(f"{key} of {name!r} is missing on rank {lack}", name, all_of)
                return
        differing = [row for row in table if len({*row.by_rank.values()}) > 1]
        if not differing:
            return
        first, odd = differing[0], {row.odd for row in differing}
        key = self._key_of(first, keys)
        # One special rank of the script, or kernels that round differently, change most tensors.
        if was_equal and len(odd) == 1 and 2 * len(differing) <= max(2, len(table)):
            rank = odd.pop()
            if rank is not None:
                self._refuse_corrupt(f"{name}.{key}", rank, all_of)
                return
        one = min(first.by_rank)
        other = next(r for r, value in first.by_rank.items() if value != first.by_rank[one])
        mine = next((v for k, v in tensors.values.items() if _sum(k) == first.key), None)
        size = self._difference(mine if self._ranks.rank in first.by_rank else None, one)
        where = f"between ranks {one} and {other} ({key})"
        if size <= 0:  # e.g. 0.0 and -0.0
            return
        if size <= max(_SMALL, self._precision_of(mine)):
            self._warn_of_small(f"the state of {name!r} differs slightly {where}: {size:.0e}")
        elif name in self._state.optimizers:  # e.g. DDP's join, in which some ranks step less often
            self._settled.add(name)
            self._log(
                f"the state of {name!r} differs {where}, although the weights are equal: "
                f"checkpoints contain that of rank {one}"
            )
        else:
            self._refuse(f"the weights of {name!r} differ {where}", name, all_of)

    def _gather(self, tensors: _Tensors) -> tuple[list[_Row], list[_Row]]:
        """Return the digests of all ranks by tensor, and the tensors that some ranks lack."""
        mine = [
            (_sum(repr(share.holders)), _sum(key), number)
            for share in tensors.shares
            for key, number in share.digests.items()
        ]
        count = self._ranks.maximum(len(mine))[0]
        padding = [(0, 0, 0)] * (count - len(mine))
        table: dict[tuple[int, int], dict[int, int]] = {}
        for rank, row in enumerate(
            self._ranks.all_gather(*(n for entry in (*mine, *padding) for n in entry))
        ):
            entries = zip(row[::3], row[1::3], row[2::3], strict=True)
            for share, key, number in entries:
                if share:
                    table.setdefault((share, key), {})[rank] = number
        rows = {place: _Row(place[1], by_rank) for place, by_rank in table.items()}
        of_all = _sum(repr(()))
        partial = [
            row
            for (share, _), row in rows.items()
            if share == of_all and len(row.by_rank) < self._ranks.size
        ]
        return [row for row in rows.values() if row not in partial], partial

    def _key_of(self, row: _Row, keys: dict[int, str]) -> str:
        """Return the key of a tensor, which perhaps only other ranks have."""
        return without_wrappers(self._ranks.first_text(keys.get(row.key)) or "")

    def _precision_of(self, tensor: torch.Tensor | None) -> float:
        """Return the relative distance of adjacent values of a tensor."""
        has_precision = tensor is not None and tensor.is_floating_point()
        own = torch.finfo(tensor.dtype).eps if has_precision and tensor is not None else 0.0
        return self._ranks.maximum(int(own * 1e15))[0] / 1e15

    def _difference(self, tensor: torch.Tensor | None, first: int) -> float:
        """Return the largest distance of a tensor from that of one rank, relative to its norm.

        Args:
            tensor: tensor of this rank; None if the rank does not have it.
            first: rank with which to compare.
        """
        data = torch.empty(0) if tensor is None else _plain(tensor)
        size = data.nbytes
        received = torch.zeros(self._ranks.maximum(size)[0], dtype=torch.uint8)
        received[:size] = data.view(-1).view(torch.uint8)
        self._ranks.broadcast(received, first)
        share = 0.0
        if tensor is not None:
            share = _distance(data, received.view(data.dtype)) if size == len(received) else 1.0
        return self._ranks.maximum(int(share * 1e15))[0] / 1e15

    def _refuse(self, text: str, name: str, all_of: Sequence[str]) -> None:
        advice = (
            f"pass local=[{name!r}] if each rank has its own (pipeline stages, local experts, "
            "LocalSGD between its averages); otherwise the ranks have diverged"
        )
        if self._warns:
            self._settled.update(all_of)
            self._log(f"{text}: checkpoints contain those of rank 0; {advice}")
            return
        self._end()
        raise UnequalStateError(f'{text}: {advice}; unequal="warn" continues as before')

    def _refuse_corrupt(self, key: str, rank: int, all_of: Sequence[str]) -> None:
        """Raise on the rank with the wrong tensor; the others wait until it has ended."""
        text = (
            f"{key} of rank {rank} has changed to a value that no other rank has: its memory, GPU "
            "or CPU is faulty"
        )
        if self._warns:
            self._settled.update(all_of)
            self._log(text)
            return
        self._end()
        if rank == self._ranks.rank:
            raise CorruptStateError(f"{text} ({_place()})")
        self._ranks.all_true(True)  # fails as after the loss of any rank, so that it is the cause
        raise CorruptStateError(text)

    def _end(self) -> None:
        """Discard the snapshots of all ranks before one of them ends and has them saved."""
        self._discard()
        self._ranks.all_true(True)

    def _warn_of_small(self, text: str) -> None:
        if not self._has_warned_of_small:
            self._log(text)
        self._has_warned_of_small = True

    def _log(self, text: str) -> None:
        if self._ranks.rank == 0:
            log(text)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dictionaries and lists, with their keys."""
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


def _precedence(share: _Share) -> tuple[bool, int, tuple[int, ...]]:
    """Return the order of shares: large sets of ranks first, all ranks before them."""
    return bool(share.holders), -len(share.holders), share.holders


def _summary(shares: Sequence[_Share]) -> list[int]:
    """Return an identifier and a digest of each share, padded with zeros."""
    found = [
        number
        for share in shares
        for number in (_sum(repr(share.holders)), _sum(repr(sorted(share.digests.items()))))
    ]
    return found + [0] * (2 * _SLOTS - len(found))


def _differs(rows: Sequence[Sequence[int]]) -> bool:
    """Return whether ranks differ in a share that they have in common.

    Args:
        rows: ``_summary`` of each rank.
    """
    found: dict[int, int] = {}
    of_all = _sum(repr(()))
    pairs = [pair for row in rows for pair in zip(row[::2], row[1::2], strict=True) if pair[0]]
    count = sum(share == of_all for share, _ in pairs)
    return 0 < count < len(rows) or any(found.setdefault(*pair) != pair[1] for pair in pairs)


def _sum(text: str) -> int:
    """Return a checksum of 62 bits, never 0."""
    whole = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(whole, "little") >> 2 | 1


@torch.no_grad()
def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the CPU, in contiguous memory."""
    any_tensor: Any = tensor
    if is_traceable_wrapper_subclass(any_tensor) and hasattr(any_tensor, "dequantize"):
        tensor = any_tensor.dequantize()
    return tensor.to("cpu", copy=True).contiguous()


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the distance of two tensors relative to the norm of the second, 1.0 at most."""
    kind = torch.complex128 if mine.is_complex() else torch.float64
    mine, theirs = mine.view(-1).to(kind), theirs.to(kind)
    is_same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    distance = float(torch.where(is_same, 0, mine - theirs).abs().norm())
    norm = float(theirs.norm())
    share = distance / norm if norm > 0 else float(distance > 0)
    return min(share, 1.0) if share == share else 1.0


def _synchronize(found: dict[str, list[tuple[str, torch.Tensor]]]) -> None:
    """Wait for the GPUs, so that the time of their last step is not the time of a comparison."""
    cuda: Any = torch.cuda
    for device in {value.device for one in found.values() for _, value in one if value.is_cuda}:
        cuda.synchronize(device)


def _place() -> str:
    """Return node and GPU of this process."""
    parts = [f"host {socket.gethostname()}"]
    if "GROUP_RANK" in os.environ:
        parts.insert(0, f"node {os.environ['GROUP_RANK']}")
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        index = cuda.current_device()
        parts.append(f"GPU {index} {getattr(cuda.get_device_properties(index), 'uuid', '')}")
    return ", ".join(parts).strip()
