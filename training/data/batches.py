"""``ElasticBatches``: the same samples in each step, for any number of ranks."""

import json
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from ..worker.device_memory import given_micro_batch
from ..worker.log import log
from .arguments import check_positive, checked_share, sources_of
from .data_ranks import DataRanks
from .order import ORDER_VERSION, Order
from .part_memory import part_memory
from .parts import Part, PartRange, Position, read
from .sample import index_of
from .schedule import LAST, Data, Last, Range, Row, Schedule, cut, cut_by_share, from_plain
from .seeded import Seeded

_AT_ONCE = 1 << 13
"""Number of samples of the steps whose batches are created together."""


class ElasticBatches(Sampler[list[int]]):
    """A ``batch_sampler`` whose samples follow from the number of the step.

    Each step has the same set of samples, regardless of restarts and the number of ranks; each
    sample appears once per epoch, without padding. Ranks take consecutive pieces of the batch of a
    step, whose sizes differ by at most one sample.

    In the state of a ``Checkpointer`` it keeps the order when a job resumes with other arguments.
    Iterated without ``parts``, it yields this rank's batches of one epoch: for evaluation.
    """

    def __init__(
        self,
        data: int | Sized,
        global_batch: int,
        *,
        micro_batch: int | None = None,
        shuffle: bool | int = True,
        seed: int = 0,
        last: Last = "short",
        weights: Sequence[float] | None = None,
        share: float | None = None,
        mesh: Any = None,
    ) -> None:
        """Check the arguments. With ``share``, all ranks call it together.

        Args:
            data: the dataset, or its number of samples.
            global_batch: samples per step, over all ranks.
            micro_batch: maximum number of samples that a rank computes at a time; None for its
                whole piece. It is smaller if ``--on-failure device-oom=shrink`` has reduced it.
            shuffle: True for all samples in random order; a number for blocks of this size in
                random order, and in random order inside each, for files on object storage; False
                for the order of the data.
            seed: seed of the order.
            last: what happens to samples at the end of an epoch that do not fill a batch: ``short``
                (a smaller batch), ``drop`` (left out) or ``carry`` (the batch continues in the next
                epoch).
            weights: share of the samples from each source, if ``data`` is a mixture
                (``ConcatDataset``, or a list of sizes); an epoch has as many samples as all sources
                together, and each source has its own epochs.
            share: speed of this rank relative to the others; its piece is in proportion.
            mesh: ``DeviceMesh`` of data parallelism if other ranks have the same samples (tensor,
                pipeline or context parallel); None if each rank has its own.

        Raises:
            TypeError: If the data has no size, e.g. ``IterableDataset``.
            ValueError: If the value of an argument is invalid.
            RuntimeError: If the job has several ranks, and no process group was initialized.
        """
        sources = sources_of(data, weights)
        check_positive("global_batch", global_batch)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"invalid value {seed!r} for seed: expected a whole number")
        if micro_batch is not None:
            check_positive("micro_batch", micro_batch)
        if last not in LAST:
            raise ValueError(f"invalid value {last!r} for last: expected short, drop or carry")
        self._seed, self._shuffle = seed, shuffle
        self._micro_batch = min(filter(None, (micro_batch, given_micro_batch())), default=None)
        self._wanted = Row(0, 0, 0, global_batch, last)
        self._sources = sources
        self._orders: dict[int, Order] = {}
        """By the first epoch of their data."""
        self._of_size: dict[int, tuple[list[PartRange], int]] = {}
        """This rank's parts of a batch, by its number of samples."""
        self._last_located: tuple[int, list[Range]] | None = None
        self._use(Schedule((self._wanted,), (Data(0, sources, (0,) * len(sources.sizes)),)))
        self._order_of(0)  # checks the rest
        self._ranks = DataRanks(mesh)
        self._shares = self._ranks.gather(checked_share(share)) if share is not None else None
        self._start: int | None = None
        """Step with which the iterators that ``parts`` creates start."""
        self._until: int | None = None
        """Number of steps of the training; None if unknown."""
        self._is_seeded = isinstance(data, Seeded)

    # --- steps -----------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Number of this rank among the ranks with different samples."""
        return self._ranks.rank

    @property
    def world(self) -> int:
        """Number of ranks with different samples."""
        return self._ranks.size

    def epoch(self, step: int) -> int:
        """Return the epoch of a step, from 0, by its first sample."""
        return self._schedule.epoch(step)

    def total(self, epochs: int) -> int:
        """Return the number of steps of ``epochs`` epochs; ``parts`` does not read beyond it."""
        check_positive("epochs", epochs)
        self._until = self._schedule.total(epochs)
        return self._until

    def size(self, step: int) -> int:
        """Return the number of samples of a step, over all ranks."""
        return sum(one.length for one in self._located(step))

    def ranges(self, step: int) -> list[PartRange]:
        """Return this rank's parts of a step; every rank has the same number of them."""
        return list(self._parts_of(step)[0])

    def _parts_of(self, step: int) -> tuple[list[PartRange], int]:
        """Return this rank's parts of a step, and the size of the largest part of all ranks."""
        size = self.size(step)
        found = self._of_size.get(size)
        if found is None:
            found = self._of_size[size] = self._cut(size)
        return found

    def _cut(self, size: int) -> tuple[list[PartRange], int]:
        world = self.world
        pieces = cut_by_share(size, self._shares) if self._shares else cut(size, world)
        largest = max(map(len, pieces))
        parts = -(-largest // (self._micro_batch or largest))
        mine = pieces[self.rank]
        found = [
            PartRange(mine.start + one.start, len(one), world * len(one) / size)
            for one in cut(len(mine), parts)
        ]
        return found, -(-largest // parts)

    def _located(self, step: int) -> list[Range]:
        """Return ``Schedule.ranges``, cached because a loader in this process repeats the call."""
        if self._last_located is None or self._last_located[0] != step:
            self._last_located = step, self._schedule.ranges(step)
        return self._last_located[1]

    def samples(self, step: int) -> torch.Tensor:
        """Return the indices of all samples of a step, over all ranks, in order (int64)."""
        return index_of(self._samples(step))

    def _samples(self, step: int) -> torch.Tensor:
        """Return the samples of a step, each with the epoch of its source."""
        found = [
            self._order_of(one.epoch).samples(one.epoch, one.start, one.length)
            for one in self._located(step)
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _order_of(self, epoch: int) -> Order:
        data = self._schedule.data_of(epoch)
        order = self._orders.get(data.first_epoch)
        if order is None:
            order = Order(data.sources, self._seed, self._shuffle, data.first_epoch, data.begins)
            self._orders[data.first_epoch] = order
        return order

    # --- reading ---------------------------------------------------------------------------------

    def parts(
        self, loader: "DataLoader[Any]", step: int, *, count: Callable[[Any], Any] | None = None
    ) -> Iterator[Part]:
        """Iterate over this rank's parts of a step, the same number on all ranks.

        Any step can be requested, even repeatedly: the samples follow from its number.

        Args:
            loader: a ``DataLoader`` whose ``batch_sampler`` is this object.
            step: number of completed steps.
            count: returns the number over which the loss of a batch is a mean, e.g. its number of
                tokens that are not ignored. The parts of the step are then read first, and weighted
                by it; one all-reduce sums it. A part for which it is 0 has weight 0 and, if
                possible, the batch of another part of this rank, because a mean over nothing is not
                a number. None for a mean over samples.

        Raises:
            ValueError: If the loader has a different ``batch_sampler``, or ``in_order=False``.
        """
        self._check_loader(loader)
        places, largest = self._parts_of(step)
        position = Position(self._version, step)
        batches: Any = read(loader, position, len(places), self._beginning_with)
        # Errors of the script in a part are not raised here.
        with part_memory(largest):
            if count is not None:
                batches = list(batches)
                counts = [
                    float(count(batch)) if place.samples else 0.0
                    for place, batch in zip(places, batches, strict=True)
                ]
                total = self._ranks.total(sum(counts))
                places = [
                    place._replace(weight=self.world * number / total if total else 0.0)
                    for place, number in zip(places, counts, strict=True)
                ]
                batches = _with_counted(batches, counts)
            mesh = self._ranks.mesh
            for index, (place, batch) in enumerate(zip(places, batches, strict=False)):
                yield Part(batch, place, index, len(places), mesh, largest)

    def _check_loader(self, loader: Any) -> None:
        if getattr(loader, "batch_sampler", None) is not self:
            raise ValueError(
                "invalid loader: its batch_sampler is another object: expected "
                "DataLoader(dataset, batch_sampler=data) with the ElasticBatches whose parts are "
                "read"
            )
        if not getattr(loader, "in_order", True):
            raise ValueError(
                "invalid value False for in_order of the loader: expected True; the samples of a "
                "step follow from the order of the batches"
            )
        self._is_seeded = isinstance(loader.dataset, Seeded)

    @contextmanager
    def _beginning_with(self, step: int) -> Iterator[None]:
        """Make new iterators start at a step (a DataLoader creates several and uses the last)."""
        self._start = step
        try:
            yield
        finally:
            self._start = None

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over this rank's batches of one epoch, without empty ones."""
        if self._start is not None:
            return self.batches(self._start, self._until)
        self._version = object()  # a loader with persistent workers has a single iterator
        total = self._schedule.total(1)
        places = (place for step in range(total) for place in self.ranges(step))
        return (
            batch
            for batch, place in zip(self.batches(0, total), places, strict=True)
            if place.samples
        )

    def __len__(self) -> int:
        places = range(self._schedule.total(1))
        return sum(place.samples > 0 for step in places for place in self.ranges(step))

    def batches(self, start: int, until: int | None = None) -> Iterator[list[int]]:
        """Iterate over this rank's batches from a step on: for the loops of other libraries.

        Args:
            start: the first step.
            until: the step after the last one; None, or <= ``start``, for no end.
        """
        step = start
        while True:
            for of_step in self._batches_from(step):
                if until is not None and step == until > start:
                    return
                yield from of_step
                step += 1

    def _batches_from(self, step: int) -> list[list[list[int]]]:
        """Return this rank's batches of a step and of some later ones, to save calls of torch."""
        places, located = self.ranges(step), self._located(step)
        epoch, start, size = located[0]
        steps = self._schedule.alike(step, _AT_ONCE // size)
        if len(located) == 1:
            samples = self._order_of(epoch).samples(epoch, start, steps * size)
        else:
            samples = self._samples(step)
        if not self._is_seeded:
            samples = index_of(samples)
        rows = samples.view(steps, -1)
        first, end = places[0].start, places[-1].start + places[-1].samples
        return [
            [
                mine[one.start - first : one.start - first + one.samples] or [stand_in]
                for one in places
            ]
            for mine, stand_in in zip(rows[:, first:end].tolist(), rows[:, 0].tolist(), strict=True)
        ]

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the order and the table of the steps, the same on all ranks."""
        table = {"seed": self._seed, "shuffle": self._shuffle, **self._schedule.plain()}
        return {"order": ORDER_VERSION, "table": json.dumps(table)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Use the order of the state; call ``resume`` afterwards, as ``Checkpointer`` does.

        Raises:
            ValueError: If a later version of ft-run has written it.
        """
        if state["order"] != ORDER_VERSION:
            raise ValueError(
                f"invalid order {state['order']} in the state of ElasticBatches: expected "
                f"{ORDER_VERSION}; another version of ft-run has written it"
            )
        table = json.loads(state["table"])
        for name, mine in (("seed", self._seed), ("shuffle", self._shuffle)):
            if table[name] != mine:
                self._log(f"the {name} of the data stays {table[name]}, not {mine}")
        self._seed, self._shuffle = table["seed"], table["shuffle"]
        self._use(from_plain(table))

    def resume(self, step: int) -> None:
        """Apply changes since the state was saved, from a step on.

        A different ``global_batch`` or ``last`` applies from this step on. Data of a different size
        applies from the next epoch on, which starts immediately if samples are missing, and for a
        mixture, whose sources continue at their positions.

        Args:
            step: number of completed steps.
        """
        schedule, wanted = self._schedule, self._wanted
        row = schedule.row_at(step)
        if row.global_batch != wanted.global_batch:
            self._log(
                f"batches of {wanted.global_batch} samples from step {step} on, "
                f"{row.global_batch} before"
            )
        if row.last != wanted.last:
            self._log(f"last={wanted.last!r} from step {step} on, {row.last!r} before")
        data, at_once = None, False
        if schedule.data[-1].sources != self._sources:
            epoch, offset = schedule.begin(step)
            present = schedule.data_of(epoch).sources
            at_once = present != self._sources and (
                self._sources.weights is not None or self._sources.epoch_size < present.epoch_size
            )
            begins = self._order_of(epoch).begins_of(self._sources, epoch, offset)
            data = Data(epoch + (offset > 0), self._sources, begins)
            old, new = present.epoch_size, self._sources.epoch_size
            self._log(
                f"the data has {new} samples from epoch {data.first_epoch} on, {old} before"
                if new != old
                else f"the data has other sources or weights from epoch {data.first_epoch} on"
            )
        self._use(schedule.changed(step, wanted.global_batch, wanted.last, data, at_once=at_once))

    def _use(self, schedule: Schedule) -> None:
        row, data = schedule.rows[-1], schedule.data[-1]
        if row.last == "drop" and row.global_batch > data.sources.epoch_size:
            raise ValueError(
                f"invalid value {row.global_batch} for global_batch: the data has only "
                f"{data.sources.epoch_size} samples: expected fewer, or last='short'"
            )
        self._schedule, self._version, self._last_located = schedule, object(), None
        self._orders.clear()

    def _log(self, text: str) -> None:
        if self._ranks.is_first:
            log(text)


def _with_counted(batches: list[Any], counts: list[float]) -> list[Any]:
    """Replace the batches whose count is 0 with copies of one that counts, if there is any."""
    counted = next((n for n, count in enumerate(counts) if count), None)
    if counted is None:
        return batches
    return [
        batch if count else copy(batches[counted])  # scripts may remove items from a batch
        for batch, count in zip(batches, counts, strict=True)
    ]
