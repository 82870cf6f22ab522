"""The samples of each step, as ranges of positions in the order of an epoch. No I/O, no clock."""

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

from .order import Sources

Last = Literal["short", "drop", "carry"]
LAST: tuple[str, ...] = get_args(Last)


class Range(NamedTuple):
    """Samples at consecutive positions of one epoch."""

    epoch: int
    start: int
    length: int


class Row(NamedTuple):
    """How batches are made from a step on, and the position at which that step starts."""

    step: int
    epoch: int
    offset: int
    global_batch: int
    last: str
    """What happens to the samples at the end of an epoch that do not fill a batch. ``short``: they
    are a smaller batch; ``drop``: they are left out; ``carry``: the batch continues in the next
    epoch."""

    def steps_of(self, samples: int) -> int:
        """Return the number of steps for the remaining samples of an epoch."""
        return samples // self.global_batch + (
            self.last == "short" and samples % self.global_batch > 0
        )


class Data(NamedTuple):
    """The data from an epoch on."""

    first_epoch: int
    sources: Sources
    begins: tuple[int, ...]
    """For a mixture, the number of samples of all earlier epochs of each source."""


class Schedule(NamedTuple):
    """The table that turns a step into samples. It is the same on all ranks."""

    rows: tuple[Row, ...]
    """By step; at least one, from step 0 on."""
    data: tuple[Data, ...]
    """By epoch; at least one, from epoch 0 on."""

    def ranges(self, step: int) -> list[Range]:
        """Return the samples of a step."""
        row, epoch, offset = self._locate(step)
        wanted, found = row.global_batch, []
        while True:
            count = min(wanted, self.size_of(epoch) - offset)
            found.append(Range(epoch, offset, count))
            wanted -= count
            if not wanted or row.last != "carry":
                return found
            epoch, offset = epoch + 1, 0

    def alike(self, step: int, limit: int) -> int:
        """Return how many consecutive steps from ``step`` on have full batches of one epoch.

        At least 1, as ``step`` counts in any case; at most ``limit``.
        """
        row, epoch, offset = self._locate(step)
        whole = (self.size_of(epoch) - offset) // row.global_batch
        others = [other.step - step for other in self.rows if other.step > step]
        return max(1, min([limit, whole, *others]))

    def epoch(self, step: int) -> int:
        """Return the epoch of the first sample of a step."""
        return self._locate(step)[1]

    def total(self, epochs: int) -> int:
        """Return the number of steps that start in the first ``epochs`` epochs."""
        end = 1
        while self.epoch(end) < epochs:
            end *= 2
        return bisect_left(range(end), epochs, key=self.epoch)

    def data_of(self, epoch: int) -> Data:
        """Return the data of an epoch."""
        return next(one for one in reversed(self.data) if one.first_epoch <= epoch)

    def size_of(self, epoch: int) -> int:
        """Return the number of samples of an epoch."""
        return self.data_of(epoch).sources.epoch_size

    def row_at(self, step: int) -> Row:
        """Return how the batch of a step is made."""
        if step < 0:
            raise ValueError(f"invalid value {step} for step: expected a whole number >= 0")
        return next(row for row in reversed(self.rows) if row.step <= step)

    def begin(self, step: int) -> tuple[int, int]:
        """Return the epoch, and the position in it, at which a step starts."""
        return self._locate(step)[1:]

    def changed(
        self,
        step: int,
        global_batch: int,
        last: str,
        data: Data | None = None,
        *,
        at_once: bool = False,
    ) -> "Schedule":
        """Return a schedule with other batches from a step on.

        Args:
            step: the next one.
            global_batch: size of the other batches.
            last: rule of the other batches.
            data: other data, from its first epoch on, which starts with the step or is the next
                one; None for the same data.
            at_once: whether the epoch of the other data starts with this step, regardless of the
                current position.
        """
        row, epoch, offset = self._locate(step)
        same = row._replace(step=step, epoch=epoch, offset=offset)
        table = self.data
        if data is not None:
            table = tuple(one for one in table if one.first_epoch < data.first_epoch)
            # If it equals the current data, the other data that was to follow is dropped again.
            if at_once or not table or table[-1].sources != data.sources:
                table = (*table, data)
            if at_once:
                epoch, offset = data.first_epoch, 0
        # All at once: the old batches may be larger than the other data, or the other way round.
        row = Row(step, epoch, offset, global_batch, last)
        rows = self.rows
        if row != same:
            rows = (*(one for one in rows if one.step < step), row)
        return Schedule(rows, table)

    def _locate(self, step: int) -> tuple[Row, int, int]:
        """Return the row of a step, and the epoch and the position at which the step starts."""
        row = self.row_at(step)
        # The remaining distance is counted in samples if batches cross epochs, else in steps.
        carries = row.last == "carry"
        left = (step - row.step) * (row.global_batch if carries else 1)
        epoch, offset = row.epoch, row.offset
        while True:
            size = self.size_of(epoch)
            here = size - offset if carries else row.steps_of(size - offset)
            if left < here:
                return row, epoch, offset + left * (1 if carries else row.global_batch)
            left, epoch, offset = left - here, epoch + 1, 0
            size, end = self.size_of(epoch), self._end_of_data(epoch)
            whole = size if carries else row.steps_of(size)
            skipped = left // whole if whole else 0
            skipped = skipped if end is None else min(skipped, end - epoch)
            left, epoch = left - skipped * whole, epoch + skipped

    def _end_of_data(self, epoch: int) -> int | None:
        return next((one.first_epoch for one in self.data if one.first_epoch > epoch), None)

    # --- plain values ----------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """Return it as lists, numbers and strings."""
        data = [
            [
                one.first_epoch,
                list(one.sources.sizes),
                [str(weight) for weight in one.sources.weights or ()],
                list(one.begins),
            ]
            for one in self.data
        ]
        return {"rows": [list(row) for row in self.rows], "data": data}


def from_plain(found: Any) -> Schedule:
    """Return a schedule from ``Schedule.plain``."""
    return Schedule(
        tuple(Row(*row) for row in found["rows"]),
        tuple(
            Data(
                first,
                Sources(tuple(sizes), tuple(map(Fraction, weights)) or None),
                tuple(begins),
            )
            for first, sizes, weights, begins in found["data"]
        ),
    )


def cut(count: int, pieces: int) -> list[range]:
    """Return ``pieces`` ranges that together are ``range(count)``; sizes differ by at most 1."""
    return _between([count * number // pieces for number in range(pieces + 1)])


def cut_by_share(count: int, shares: Sequence[float]) -> list[range]:
    """Return ranges that together are ``range(count)``, in proportion to positive shares."""
    ends, until = [0], 0.0
    for share in shares:
        until += share
        ends.append(int(count * until / sum(shares) + 0.5))
    ends[-1] = count
    return _between(ends)


def _between(ends: list[int]) -> list[range]:
    return [range(start, end) for start, end in pairwise(ends)]
