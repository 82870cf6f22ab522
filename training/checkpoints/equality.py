"""Checks that weights and optimizer state are equal on all ranks, or sharded.

A difference is an error, raised before rank 0's values are saved for all ranks. A tensor that
changed on only one rank is reported as corrupt there. Buffers, extra state and other objects may
differ (``rank_state.py``).
"""

import os
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from ..ranks import Ranks
from ..worker.log import log
from .common_tensors import (
    OF_ALL,
    SLOTS,
    CommonTensors,
    Row,
    checksum,
    common_tensors,
    differs,
    distance,
    plain,
    precision,
    summary,
    tensors_of,
)
from .state import State, without_wrappers

_EVERY_STEPS = 100
_COST_MAX = 0.001
"""Maximum share of the time that comparisons take before they become less frequent."""
_COST_LOGGED_S = 0.01
_SMALL = 1e-5
"""Relative difference of a tensor up to which there is only a warning. Kernels of different GPUs
round differently: measured as 2e-7 of the weights after 10,000 steps of AdamW."""
_NAMES_MAX = 64


class UnequalStateError(RuntimeError):
    """Raised on all ranks if state that should be equal differs between them."""


class CorruptStateError(RuntimeError):
    """Raised on the only rank whose state differs from all others' and was equal before."""


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
            discard: discards the snapshots of this rank; called before an error.
            unequal: whether a difference is an error or a warning.
            every: steps between comparisons; None for 100, or more if they take long.

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
        self._digests: dict[str, dict[str, int]] = {}
        """Digests of the last comparison in this process, by object and key."""
        self._settled: set[str] = set()
        """Objects that are no longer compared, after a warning."""
        self._common: dict[str, set[int]] = {}
        """Checksums of the keys that all ranks have, for sharded objects whose other keys
        differ."""
        self._has_warned_of_small = self._has_logged_cost = False
        self._verified_s, self._exchange_s = 0.0, 0.0

    def _common_names(self) -> list[str]:
        objects, optimizers = self._state.objects, self._state.optimizers
        mine = [*sorted(n for n in objects if isinstance(objects[n], nn.Module))]
        local = self._state.kinds.local
        mine = [n for n in (*mine, *sorted(optimizers)) if n not in local][:_NAMES_MAX]
        sums = [zlib.crc32(name.encode()) for name in mine]
        rows = self._ranks.all_gather(*sums, *[-1] * (_NAMES_MAX - len(sums)))
        common = set(rows[0]).intersection(*rows)
        return [name for name, checksum in zip(mine, sums, strict=True) if checksum in common]

    def resume(self) -> None:
        """Record that each rank resumes from its own snapshot, so the state was equal before."""
        self._was_equal = frozenset(self._names)

    def is_due(self, step: int) -> bool:
        """Return whether to compare at a step: the first one in this process, then periodically."""
        return self._verified < 0 or not 0 <= step - self._verified < self._every

    def verify(self, step: int, *, is_changed: bool = False) -> None:
        """Compare the state of all ranks, unless it was compared at this step and has not changed.

        Raises:
            CorruptStateError: If a single rank's state has become different from all others'.
            UnequalStateError: If the state differs between ranks.
        """
        names = [name for name in self._names if name not in self._settled]
        if self._ranks.size == 1 or not names or (self._verified == step and not is_changed):
            return
        found = {name: tensors_of(self._state, name) for name in names}
        _synchronize(value for one in found.values() for _, value in one)
        begin = time.monotonic()
        digests = {
            name: common_tensors(one, self._ranks.size, self._common.get(name))
            for name, one in found.items()
        }
        row = [number for one in digests.values() for number in summary(one.shares)]
        took_s, since_s = time.monotonic() - begin, begin - self._verified_s
        times = [int(one * 1e6) for one in (took_s, self._exchange_s, since_s)]
        begin = time.monotonic()
        rows = self._ranks.all_gather(*times, *row)
        self._exchange_s = time.monotonic() - begin
        steps, self._verified = step - self._verified, step
        if self._verified_s and not self._is_fixed and steps > 0:
            cost_us = max(row[0] for row in rows) + min(row[1] for row in rows)
            self._limit_cost(cost_us / 1e6, rows[0][2] / 1e6 / steps)
        width = 2 * SLOTS
        places = ((n, 3 + index * width) for index, n in enumerate(names))
        differing = [
            name for name, place in places if differs([r[place : place + width] for r in rows])
        ]
        was_equal, self._was_equal = self._was_equal, frozenset(names) - {*differing}
        corrupt: list[tuple[str, int]] = []
        for name in differing:
            if name not in self._settled:
                corrupt += self._explain(name, digests[name], name in was_equal, differing)
        if corrupt:
            self._refuse_corrupt(corrupt, differing)
        self._digests = {name: one.digests for name, one in digests.items()}
        self._verified_s = time.monotonic()

    def _limit_cost(self, cost_s: float, step_s: float) -> None:
        share = cost_s / max(step_s * self._every, 1e-6)
        if share <= _COST_MAX:
            return
        if not self._has_logged_cost and cost_s >= _COST_LOGGED_S:
            self._has_logged_cost = True
            self._log(
                f"comparing the state of the ranks every {self._every} steps takes {share:.1%} of "
                f"the time: it is done more rarely, until it takes {_COST_MAX:.1%}; verify_every "
                "sets a fixed number of steps"
            )
        self._every *= 2

    # --- differences -----------------------------------------------------------------------------

    def _explain(
        self, name: str, tensors: CommonTensors, was_equal: bool, all_of: Sequence[str]
    ) -> list[tuple[str, int]]:
        """Raise or warn at the first differing tensor; if it is corrupt, return it and its rank."""
        table, partial = self._gather(tensors)
        keys = {checksum(key): key for key in tensors.values}
        before, now = self._digests.get(name, {}), tensors.digests
        (trained,) = self._ranks.maximum(
            sum(now[key] != before[key] for key in now.keys() & before.keys())
        )
        if partial:
            if self._ranks.maximum(int(tensors.is_sharded))[0]:
                shared = {row.key for row in table if len(row.by_rank) == self._ranks.size}
                self._common[name] = shared - {row.key for row in partial}
            else:
                key = self._key_of(partial[0], keys)
                lack = next(r for r in range(self._ranks.size) if r not in partial[0].by_rank)
                text = f"{key} of {name!r} is missing on rank {lack}"
                if name in self._state.optimizers:
                    self._settle_optimizer(name, text, 0)
                else:
                    self._refuse(text, name, all_of)
                return []
        differing = [row for row in table if len({*row.by_rank.values()}) > 1]
        if not differing:
            return []
        odd = {row.odd for row in differing}
        corrupt = odd.pop() if was_equal and len(odd) == 1 else None
        found = self._first_unequal(differing, tensors)
        if found is None:
            return []
        first, one, size, limit = found
        key = self._key_of(first, keys)
        # Kernels that round differently, or a rank that the script treats differently, change most
        # of the trained tensors.
        is_single = 2 * len(differing) <= max(2, trained)
        if corrupt is not None and is_single:
            return [(f"{name}.{key}", corrupt)]
        other = next(r for r, value in first.by_rank.items() if value != first.by_rank[one])
        where = f"between ranks {one} and {other} ({key})"
        if size <= max(_SMALL, limit):
            self._warn_of_small(f"the state of {name!r} differs slightly {where}: {size:.0e}")
        elif name in self._state.optimizers:
            text = f"the state of {name!r} differs {where}, although the weights are equal"
            self._settle_optimizer(name, text, one)
        elif corrupt:  # for rank 0, the script's special treatment is more likely
            return [(f"{name}.{key}", corrupt)]
        else:
            self._refuse(f"the weights of {name!r} differ {where}", name, all_of)
        return []

    def _first_unequal(
        self, differing: Sequence[Row], tensors: CommonTensors
    ) -> tuple[Row, int, float, float] | None:
        """Return the first tensor whose values differ, not only their bits (0.0 and -0.0).

        Also return the lowest rank that has it, the largest distance from the values there, and the
        precision.
        """
        for row in differing:
            one = min(row.by_rank)
            mine = next((v for k, v in tensors.values.items() if checksum(k) == row.key), None)
            size, limit = self._difference(mine if self._ranks.rank in row.by_rank else None, one)
            if size > 0:
                return row, one, size, limit
        return None

    def _settle_optimizer(self, name: str, text: str, rank: int) -> None:
        """Only warn of an optimizer's state: e.g. with DDP's join, some ranks step less often."""
        self._settled.add(name)
        self._log(f"{text}: checkpoints contain that of rank {rank}")

    def _gather(self, tensors: CommonTensors) -> tuple[list[Row], list[Row]]:
        """Return the digests of all ranks by tensor, and the tensors that some ranks lack."""
        mine = [
            (checksum(repr(share.holders)), checksum(key), number)
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
        rows = {place: Row(place[1], by_rank) for place, by_rank in table.items()}
        partial = [
            row
            for (share, _), row in rows.items()
            if share == OF_ALL and len(row.by_rank) < self._ranks.size
        ]
        return [row for row in rows.values() if row not in partial], partial

    def _key_of(self, row: Row, keys: dict[int, str]) -> str:
        """Return the key of a tensor that possibly only other ranks have."""
        return without_wrappers(self._ranks.first_text(keys.get(row.key)) or "")

    def _difference(self, tensor: torch.Tensor | None, first: int) -> tuple[float, float]:
        """Return the largest distance of a tensor from that on one rank, and its precision."""
        data = torch.empty(0) if tensor is None else plain(tensor)
        (size,) = self._ranks.maximum(data.nbytes)
        received = torch.zeros(size, dtype=torch.uint8)
        received[: data.nbytes] = data.view(-1).view(torch.uint8)
        self._ranks.broadcast(received, first)
        found = 0.0
        if tensor is not None:
            found = distance(data, received.view(data.dtype)) if data.nbytes == size else 1.0
        shares = (found, precision(tensor))
        largest = self._ranks.maximum(*(int(share * 1e15) for share in shares))
        return largest[0] / 1e15, largest[1] / 1e15

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

    def _refuse_corrupt(self, found: Sequence[tuple[str, int]], all_of: Sequence[str]) -> None:
        """Raise on the rank with the wrong tensors; the others wait until it has ended.

        ``found`` can have several tensors, because a wrong moment of an optimizer makes a weight
        wrong.
        """
        rank = found[0][1]
        keys = " and ".join(key for key, of in found if of == rank)
        text = (
            f"{keys} of rank {rank} has changed to a value that no other rank has: its memory, GPU "
            "or CPU is faulty"
        )
        if self._warns:
            self._settled.update(all_of)
            self._log(text)
            return
        self._end()
        if rank == self._ranks.rank:
            raise CorruptStateError(f"{text} ({_place()})")
        self._ranks.all_true(True)  # fails when the other rank ends, whose error is the cause
        raise CorruptStateError(text)

    def _end(self) -> None:
        """Discard the snapshots of all ranks before one of them ends and they would be saved."""
        self._discard()
        self._ranks.all_true(True)

    def _warn_of_small(self, text: str) -> None:
        if not self._has_warned_of_small:
            self._log(text)
        self._has_warned_of_small = True

    def _log(self, text: str) -> None:
        if self._ranks.rank == 0:
            log(text)


def _synchronize(tensors: Iterable[torch.Tensor]) -> None:
    """Wait for the GPUs, so that the time of their last step does not count as comparison time."""
    cuda: Any = torch.cuda
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        cuda.synchronize(device)


def _place() -> str:
    parts = [f"host {socket.gethostname()}"]
    if "GROUP_RANK" in os.environ:
        parts.insert(0, f"node {os.environ['GROUP_RANK']}")
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        index = cuda.current_device()
        parts.append(f"GPU {index} {getattr(cuda.get_device_properties(index), 'uuid', '')}")
    return ", ".join(parts).strip()
