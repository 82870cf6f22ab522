"""``ElasticBatches`` and ``Checkpointer`` for the training loops of libraries."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from .checkpointer import Checkpointer
from .data.batches import ElasticBatches
from .data.parts import Part
from .data.schedule import Last

_LOADER_OPTIONS = (
    "collate_fn",
    "generator",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


class LibraryBatches:
    """The batches of each step, the same number in all steps: libraries count steps in batches.

    It has its own loader, so that no library splits it between the ranks again.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        global_batch: int,
        *,
        micro_batch: int,
        shuffle: bool,
        seed: int,
        last: Last,
    ) -> None:
        """Create the batches; all ranks call it together, after ``init_process_group``.

        ``loader`` provides the dataset, workers and ``collate_fn``; the other arguments are those
        of ``ElasticBatches``.

        Raises:
            TypeError: If the dataset has no size.
            ValueError: If the value of an argument is invalid.
        """
        self.data = ElasticBatches(
            loader.dataset,  # type: ignore[arg-type]  # it checks that the dataset has a size
            global_batch,
            micro_batch=micro_batch,
            shuffle=shuffle,
            seed=seed,
            last=last,
        )
        options = {name: getattr(loader, name) for name in _LOADER_OPTIONS}
        self.loader = DataLoader(loader.dataset, batch_sampler=self.data, **options)
        self.parts = len(self.data.ranges(0))
        """Number of batches per step on each rank: the libraries' gradient accumulation."""
        samples = len(loader.dataset)  # type: ignore[arg-type]  # checked above
        self.steps_per_epoch = (samples if last == "drop" else samples - 1 + global_batch) // (
            global_batch
        )
        """Number of steps that libraries count as an epoch; with ``carry``, the number of batches
        of an epoch rounded up."""
        self._table = self._read_table()

    def read(self, step: int, model: nn.Module) -> Iterator[Part]:
        """Iterate over the parts of a step; missing parts of a short step have weight 0.

        Raises:
            ValueError: If the model has BatchNorm, which would normalize a single sample.
        """
        missing = self.parts - len(self.data.ranges(step))
        for part in self.data.parts(self.loader, step):
            part.sync(model)  # checks the model; the library reduces gradients
            numbers = range(self.parts - missing, self.parts) if part.is_last else ()
            stand_ins = [part.stand_in(number, self.parts) for number in numbers]
            yield part
        yield from stand_ins

    def check_restored(self) -> None:
        """Raise ``ValueError`` if the state was saved with other batches or data."""
        if self._read_table() != self._table:
            raise ValueError(
                "invalid value of global_batch, last or the data: the state was saved with other "
                f"batches, or data of another size ({self._read_table()}, now {self._table}): "
                "expected the same, since the library counts epochs in steps; use a new folder, "
                "or ElasticBatches in a loop of your own"
            )

    def _read_table(self) -> Any:
        table = json.loads(self.data.state_dict()["table"])
        return {name: table[name] for name in ("rows", "data")}


class LibraryLoop:
    """The progress of a library's loop, and the checkpointer that saves it."""

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        state: Mapping[str, Any],
        batches: LibraryBatches,
        options: Mapping[str, Any],
    ) -> None:
        """Restore the state, all ranks together; raise ``ValueError`` if it has other batches."""
        self._checkpointer = Checkpointer(folder, {**state, "data": batches.data}, **options)
        self.completed = self._checkpointer.restore()
        """Number of completed steps."""
        batches.check_restored()

    def complete(self, step: int) -> None:
        """Take the snapshot of completed steps, once, when all of their work is done."""
        if step > self.completed:
            self.completed = step
            self._checkpointer.step(step)
        else:  # the library has drawn random numbers since the state was restored
            self._checkpointer.seed_step(step)

    def finish(self, step: int) -> None:
        """Complete the last step; raise ``RuntimeError`` if its checkpoint cannot be written."""
        self.complete(step)
        self._checkpointer.finish(step)
