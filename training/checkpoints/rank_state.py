"""State of single ranks: objects that are neither modules nor their optimizers.

A snapshot contains the values of its rank. A checkpoint contains those of rank 0, and of all ranks
if they differ; they are gathered when it is written.
"""

import json
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from typing import Any, NamedTuple

import torch

from ..data.hashing import key_of
from ..random_numbers import seed_generators
from ..ranks import Ranks
from ..worker.log import log
from .checkpoint_files import serialized
from .values import digest_of, has_shards, leaves, packed, unpacked

RESERVED = "ft_run_"
"""Prefix of ft-run's own names in the state."""
RECORD = f"{RESERVED}ranks"
BUFFERS = f"{RESERVED}buffers"
"""Key of the buffers and extra state of modules among the values of a rank."""

_LIMIT_BYTES = 64 << 20
"""Limit for the values of all ranks in a checkpoint: number of ranks times the largest."""
_SLOT_BYTES = 1 << 16
"""Initial room for them; a slot that grows changes the layout of the file."""


class Origin(NamedTuple):
    """The rank that saved a state."""

    world: int
    rank: int
    differing: list[str]
    """Names of the objects that are known to differ between the ranks."""


class RankRecord:
    """Object in the state with its origin and, in a checkpoint, the values of all ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self.origin = Origin(ranks.size, ranks.rank, [])
        self.slot: torch.Tensor | None = None
        """Packed values of all ranks, with room to grow; only on rank 0, once some differ."""

    def state_dict(self) -> dict[str, Any]:
        """Return the record."""
        found: dict[str, Any] = {"origin": json.dumps(self.origin)}
        return found if self.slot is None else {**found, "values": self.slot}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: ``RankState.select`` has read it."""

    def put(self, packed: bytes) -> None:
        """Set the packed values."""
        size = _SLOT_BYTES if self.slot is None else self.slot.numel()
        while size < len(packed):
            size *= 2
        if self.slot is None or self.slot.numel() < size:
            self.slot = torch.zeros(size, dtype=torch.uint8, device="cpu")
        self.slot[: len(packed)] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)


class RankState:
    """The values of single ranks. All ranks call the methods together."""

    def __init__(
        self, ranks: Ranks, record: RankRecord, names: Iterable[str], modules: Iterable[str] = ()
    ) -> None:
        """Compare the names of the objects with those of the other ranks.

        ``names`` are neither modules nor their optimizers; ``modules`` are the same on all ranks,
        but their buffers may differ.
        """
        self._modules = sorted(modules)
        self._ranks, self._record = ranks, record
        self._names = tuple(sorted(set(names) - {RECORD}))
        """Names of the objects that ranks compare, the same on all of them."""
        shared = [name for name in self._names if name != GENERATORS]
        known = ranks.all_gather(len(shared), zlib.crc32(json.dumps(shared).encode()))
        self._compared = tuple(shared) if all(row == known[0] for row in known) else ()
        self.gathered = -1
        """Step at which values were gathered."""
        self._sharded: frozenset[str] = frozenset()
        """Objects with DTensors: each rank has its part of the same values."""
        self._has_warned = False
        self._missing: list[str] = []
        """Objects of this rank that were not restored."""
        self._old_world = ranks.size
        self._digests = [0] * (2 * len(self._compared)) if ranks.size > 1 else []
        """Digests of the newest snapshot, or of values that were gathered later."""

    # --- steps -----------------------------------------------------------------------------------

    def digests(self, of: Callable[[Sequence[str]], list[int]] | None) -> list[int]:
        """Return the digest of each object, and its negative; ranks compute the maximum of both.

        ``of`` returns those of objects in a new snapshot; None to keep the last ones.
        """
        if of is not None and self._digests:
            pairs = zip(self._compared, of(self._compared), strict=True)
            self._keep([0 if name in self._sharded else digest for name, digest in pairs])
        return self._digests

    def _keep(self, digests: Sequence[int]) -> None:
        self._digests = [*digests, *(-one for one in digests)]

    def receive(self, maxima: Sequence[int]) -> None:
        """Record which objects differ, from the maxima of ``digests`` over all ranks."""
        count = len(maxima) // 2
        pairs = zip(self._compared, maxima[:count], maxima[count:], strict=False)
        self._set_differing(name for name, high, low in pairs if high != -low)

    def _set_differing(self, names: Iterable[str]) -> None:
        self._record.origin = self._record.origin._replace(differing=sorted(names))

    @property
    def is_needed(self) -> bool:
        """Whether checkpoints can have values of several ranks."""
        return self._ranks.size > 1 and bool(
            self._compared or self._modules or GENERATORS in self._names
        )

    # --- checkpoints -----------------------------------------------------------------------------

    def gather(
        self, step: int, nested: Mapping[str, Any], buffers: Mapping[str, Mapping[str, Any]]
    ) -> bool:
        """Put the values that differ into the record of rank 0; return whether it has changed."""
        self.gathered = step
        if not self.is_needed:
            return False
        self._sharded = frozenset(name for name in self._names if has_shards(nested[name]))
        digests = [
            0 if name in self._sharded else digest_of(leaves(nested[name]))
            for name in self._compared
        ]
        self._keep(digests)
        of_modules = [digest_of(leaves(buffers[name])) for name in self._modules]
        rows = self._ranks.all_gather(0, *digests, *of_modules)
        columns = [*zip(*rows, strict=True)][1:]
        is_different = [len(set(column)) > 1 for column in columns]
        differing = [*compress(self._compared, is_different)]
        self._set_differing(differing)
        values = {n: nested[n] for n in self._names if n in differing or n == GENERATORS}
        modules = compress(self._modules, is_different[len(digests) :])
        payload = self._pack(values, {name: buffers[name] for name in modules})
        payloads = self._ranks.gather(payload) if payload else []
        if not payloads and self._record.slot is None:
            return False
        if self._ranks.rank == 0:
            self._record.put(packed(step, payloads))
        return True

    def _pack(self, values: dict[str, Any], buffers: dict[str, Any]) -> bytes:
        """Return the values to send; if they are too large, leave out buffers, then everything."""
        for of_modules in (buffers, {}) if buffers else ({},):
            sent = {**values, **({BUFFERS: of_modules} if of_modules else {})}
            payload = serialized(sent) if sent else b""
            total = self._ranks.size * self._ranks.maximum(len(payload))[0]
            if total <= _LIMIT_BYTES:
                return payload
            self._warn([*values, *(f"the buffers of {name}" for name in of_modules)], total)
        return b""

    def _warn(self, names: Sequence[str], total: int) -> None:
        if self._ranks.rank == 0 and not self._has_warned:
            log(
                f"checkpoints have only the values of rank 0 of {_shown(names)}: "
                f"those of all ranks take {total >> 20} MB, the limit is {_LIMIT_BYTES >> 20} MB"
            )
        self._has_warned = True

    def written_by_rank_0(self, nested: Mapping[str, Any]) -> frozenset[str]:
        """Return the names of objects whose values in a checkpoint are those of rank 0."""
        names = (*self._compared, GENERATORS, RECORD)
        return frozenset(name for name in names if name in nested and not has_shards(nested[name]))

    # --- restoring -------------------------------------------------------------------------------

    def select(self, nested: dict[str, Any], step: int, *, compares: bool) -> frozenset[str]:
        """Choose the values of this rank; return the names of objects that are not restored.

        Args:
            nested: nested state dict that was read; values in it are replaced.
            compares: True for a snapshot of this or another rank, with all ranks calling together;
                False for a checkpoint.
        """
        record = nested.pop(RECORD, None)
        if record is None:  # saved by an older version of ft-run
            return frozenset()
        origin = Origin(*json.loads(record["origin"]))
        differing = {*origin.differing, GENERATORS}
        if compares and self._ranks.size > 1:
            differing |= self._compare(nested, differing)
        self._set_differing(differing - {GENERATORS})
        self._old_world = origin.world
        if origin.rank == self._ranks.rank:
            return frozenset()
        own: dict[str, Any] = {}
        if not compares:
            slot = record.get("values")
            own = unpacked(slot, step, self._ranks.rank) if slot is not None else {}
            for name, buffers in own.pop(BUFFERS, {}).items():
                if name in self._modules and name in nested:
                    nested[name].update(buffers)
        missing = {name for name in self._names if name in differing} - own.keys()
        nested.update(own)
        self._missing = sorted(missing & nested.keys())
        if GENERATORS in missing:
            seed_generators(key_of(step, self._ranks.rank))
        return frozenset(missing)

    def _compare(self, nested: Mapping[str, Any], known: set[str]) -> set[str]:
        """Return which objects differ between the ranks, or are known to on any rank."""
        rows = self._ranks.all_gather(
            0,
            *(digest_of(leaves(nested.get(name)), is_exact=False) for name in self._compared),
            *(int(name in known) for name in self._compared),
        )
        count = len(self._compared)
        return {
            name
            for index, name in enumerate(self._compared)
            if len({row[1 + index] for row in rows}) > 1
            or any(row[1 + count + index] for row in rows)
        }

    def report(self) -> None:
        """Log which ranks have no saved values, and which saved values are dropped."""
        new = [
            rank for rank, row in enumerate(self._ranks.all_gather(len(self._missing))) if row[0]
        ]
        words = self._ranks.first_text(_shown(self._missing) if self._missing else None)
        if self._ranks.rank > 0:
            return
        if new:
            log(f"no saved {words} for rank {_shown(new)}: as at the start of a job")
        size, kept = self._ranks.size, {*self._record.origin.differing, GENERATORS}
        lost = [name for name in self._names if name in kept]
        if self._old_world > size and lost:
            ranks = _shown(range(size, self._old_world))
            log(
                f"the saved {_shown(lost)} of rank {ranks} are not used: {self._old_world} ranks "
                f"before, {size} now"
            )


def _shown(items: Iterable[object]) -> str:
    return ", ".join("random number generators" if one == GENERATORS else str(one) for one in items)


# --- random number generators --------------------------------------------------------------------

GENERATORS = "ft_run_generators"
"""Name of this object in the state."""
_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""
_NUMPY = "MT19937"
"""Kind of NumPy's global generator, unless the script has set a different one."""
_NUMPY_WORDS = 624
_DEVICE_BYTES = 64
"""Room for the state of the device: CUDA uses 16 bytes."""


class Generators:
    """The random number generators of Python, NumPy, torch and this rank's device.

    The tensors have the same sizes in all processes with the same version of torch, whether or not
    NumPy and a device are used; otherwise the layout of snapshots would change during training.
    """

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the states as tensors."""
        version, words, gauss = random.getstate()
        second, of_numpy = 0.0, [0] * (3 + _NUMPY_WORDS)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            of = numpy.random.get_state(legacy=False)
            if of["bit_generator"] == _NUMPY:
                of_numpy = [1, of["state"]["pos"], of["has_gauss"], *of["state"]["key"].tolist()]
                second = of["gauss"]
        device = torch.zeros(1 + _DEVICE_BYTES, dtype=torch.uint8, device="cpu")
        if _CUDA.is_initialized():
            found = _CUDA.get_rng_state(_CUDA.current_device())
            if found.numel() <= _DEVICE_BYTES:
                device[0] = found.numel()
                device[1 : 1 + found.numel()] = found
        return {
            "python": torch.tensor([version, gauss is not None, *words], device="cpu"),
            "numpy": torch.tensor(of_numpy, device="cpu"),
            "gauss": torch.tensor([gauss or 0.0, second], dtype=torch.float64, device="cpu"),
            "torch": torch.get_rng_state(),
            "device": device,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the generators; do nothing if the state is empty or from a different version."""
        sizes = {name: value.shape for name, value in self.state_dict().items()}
        if {name: getattr(value, "shape", None) for name, value in state.items()} != sizes:
            return
        gauss, second = state["gauss"].tolist()
        version, has_gauss, *words = state["python"].tolist()
        random.setstate((version, tuple(words), gauss if has_gauss else None))
        is_known, position, has_second, *numbers = state["numpy"].tolist()
        if is_known:
            with suppress(ImportError):
                import numpy  # torch does not need it

                key = numpy.array(numbers, dtype=numpy.uint32)
                numpy.random.set_state((_NUMPY, key, position, has_second, second))
        torch.set_rng_state(state["torch"].clone())
        length, of_device = int(state["device"][0]), state["device"][1:]
        if length and _CUDA.is_available():
            _CUDA.set_rng_state(of_device[:length].clone(), _CUDA.current_device())
