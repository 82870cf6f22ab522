"""The parts in which a rank computes its piece of a step's batch."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ..random_numbers import generators_kept
from ..worker import loader_settings
from .part_memory import part_memory

Begin = Callable[[int], AbstractContextManager[object]]
"""Returns the context in which a loader's iterators start with a step."""


class PartRange(NamedTuple):
    """The samples of one part, as positions in the batch of its step."""

    start: int
    """First position in the batch."""
    samples: int
    """Number of samples; if it is 0, the first sample of the batch stands in, so that collectives
    match."""
    weight: float
    """Factor of its mean loss: number of ranks x samples of the part / samples of the step."""


class Part:
    """One part of this rank's piece: the batch of the loader, and its weight."""

    def __init__(
        self, batch: Any, place: PartRange, index: int, parts: int, mesh: Any, largest: int = 0
    ) -> None:
        self.batch: Any = batch
        """Result of the loader."""
        self.weight: float = place.weight
        """Factor for the mean loss of the part. The gradients of all parts and ranks, which DDP and
        FSDP2 average over the ranks, are then those of the mean over the whole batch."""
        self.samples: int = place.samples
        """Number of samples that count; if it is 0, one that does not count stands in, with weight
        0."""
        self.index: int = index
        """Number of the part in the step, from 0."""
        self.is_last: bool = index == parts - 1
        """Whether it is the last part of this step on this rank, and so on all others."""
        self._mesh = mesh
        self._largest = largest

    def stand_in(self, index: int, parts: int) -> "Part":
        """Return a part with weight 0 and a copy of the batch, for a step that lacks parts."""
        batch = copy(self.batch)  # scripts may remove items from a batch
        return Part(batch, PartRange(0, 0, 0.0), index, parts, self._mesh, self._largest)

    def memory(self) -> AbstractContextManager[None]:
        """Return a context that reports if the accelerator runs out of memory in this part."""
        return part_memory(self._largest)

    def sync(self, model: nn.Module, *, every: bool = True) -> AbstractContextManager[None]:
        """Return the context for forward and backward of this part.

        DDP reduces gradients in the last part only. FSDP2 reduces and scatters them in each part:
        otherwise it keeps whole gradients, and smaller parts need more memory instead of less.

        Args:
            model: DDP, FSDP2 (``fully_shard``) or another module, even compiled.
            every: whether FSDP2 reduces in each part; if False, only in the last one, which takes
                less traffic and more memory.

        Raises:
            ValueError: If the model shares samples between ranks, and ``ElasticBatches`` has no
                ``mesh``; or if its BatchNorm would normalize a single sample.
        """
        whole = model._modules.get("_orig_mod") or model  # for a compiled model
        known = _KNOWN.get(whole) or _KNOWN.setdefault(whole, _Known(whole))
        if known.needs_mesh and self._mesh is None:
            raise ValueError(
                "invalid value None for mesh: the model is sharded over ranks that share their "
                "samples (tensor parallel): expected the mesh of data parallelism, e.g. "
                "mesh=world_mesh['dp']"
            )
        if known.has_batch_norm and self.samples < 2 and whole.training:
            raise ValueError(
                f"a part of {self.samples} sample(s) for a model with BatchNorm, which needs 2: "
                "expected a larger micro_batch, and last='drop' if the batch at the end of an "
                "epoch is too small for the ranks"
            )
        inner: AbstractContextManager[None] = nullcontext()
        if isinstance(whole, DistributedDataParallel):
            inner = nullcontext() if self.is_last else whole.no_sync()
        elif known.is_fsdp2:
            inner = _sharded(whole, is_last=self.is_last, every=every)
        return part_memory(self._largest, inner) if whole.training else inner


@contextmanager
def _sharded(model: Any, *, is_last: bool, every: bool) -> Iterator[None]:
    """Reduce gradients of FSDP2 in this part or not, and in each later backward."""
    model.set_requires_gradient_sync(every or is_last)  # sets the other one too
    model.set_requires_all_reduce(is_last)  # HSDP reduces shards in each part anyway
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


class _Known:
    def __init__(self, model: nn.Module) -> None:
        self.has_batch_norm = any(isinstance(one, _BatchNorm) for one in model.modules())
        self.is_fsdp2 = hasattr(model, "set_requires_gradient_sync")
        sharded = [_shard_dims(one) for one in model.parameters() if isinstance(one, DTensor)]
        self.needs_mesh = bool(sharded) and (not self.is_fsdp2 or max(sharded) > 1)


def _shard_dims(parameter: DTensor) -> int:
    return sum(one.is_shard() for one in parameter.placements)


_KNOWN: "WeakKeyDictionary[nn.Module, _Known]" = WeakKeyDictionary()


class Position(NamedTuple):
    """Next result of a loader's iterator."""

    order: object
    """Identifies the order of the samples: a different object means a different order."""
    step: int


class _Reading(NamedTuple):
    iterator: Iterator[Any]
    position: Position | None
    """None in the middle of a step."""


_READINGS: "WeakKeyDictionary[Any, _Reading]" = WeakKeyDictionary()
"""By loader. Not stored in the batches, to which iterators refer: a cycle would be collected at
some later time, and iterators with workers then wait for 5 s for each."""
_END = object()


def read(loader: Any, position: Position, count: int, begin: Begin) -> Iterator[Any]:
    """Iterate over the ``count`` batches of a step; replace an iterator at a different position."""
    reading = _READINGS.pop(loader, None)
    iterator = reading.iterator if reading is not None and reading.position == position else None
    if loader_settings.apply(loader, is_only=not _READINGS):
        iterator = None
    batch = next(iterator, _END) if iterator is not None else _END
    if iterator is None or batch is _END:  # it ended with the epochs that were requested then
        began_ns = time.monotonic_ns()
        del reading, iterator  # ends their workers before others start
        # Creating one draws a seed for the workers, which would change dropout of the step.
        with generators_kept(), begin(position.step):
            iterator = iter(loader)
        batch = next(iterator)
        loader_settings.record_start(time.monotonic_ns() - began_ns)
    _READINGS[loader] = _Reading(iterator, None)
    for _ in range(count - 1):
        yield batch
        batch = next(iterator)
    _READINGS[loader] = _Reading(iterator, position._replace(step=position.step + 1))
    yield batch
