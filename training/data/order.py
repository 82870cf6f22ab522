"""The order of the samples of an epoch: a function of seed, epoch and position."""

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch

from .hashing import key_of
from .mixture import Mixture
from .permutation import Permutation
from .sample import EPOCH_SHIFT, MAX_SIZE

ORDER_VERSION = 1
"""Version of everything that determines the order; saved in the state of ``ElasticBatches``."""
_KEPT = 4
"""Number of cached orders: for two epochs, or a few blocks; for a mixture, two per source."""


class Sources(NamedTuple):
    """The data: one source, or several that are mixed."""

    sizes: tuple[int, ...]
    """Number of samples of each source."""
    weights: tuple[Fraction, ...] | None
    """Proportions of the sources in a mixture; None for a single source."""

    @property
    def epoch_size(self) -> int:
        """Number of samples of an epoch."""
        return sum(self.sizes)


class Order:
    """The samples of all epochs from one on."""

    def __init__(
        self,
        sources: Sources,
        seed: int,
        shuffle: bool | int,
        first_epoch: int = 0,
        begins: tuple[int, ...] | None = None,
    ) -> None:
        """Check the arguments.

        Args:
            shuffle: True for all samples; > 1 for blocks of this size, and inside each; False for
                none.
            first_epoch: the first epoch of this data.
            begins: for a mixture, how many samples of all its epochs each source has had before;
                None for 0.

        Raises:
            ValueError: If an argument is invalid.
        """
        if sources.epoch_size > MAX_SIZE:
            raise ValueError(
                f"invalid value {sources.epoch_size} for data: expected at most 2**40 samples"
            )
        if not isinstance(shuffle, bool) and not (isinstance(shuffle, int) and shuffle > 1):
            raise ValueError(
                f"invalid value {shuffle!r} for shuffle: expected True, False or the size of "
                "blocks, a whole number >= 2"
            )
        self._sources, self._shuffle = sources, shuffle
        self._first_epoch = first_epoch
        self._begins = begins or (0,) * len(sources.sizes)
        kept = max(_KEPT, 2 * len(sources.sizes))
        self._permutation = lru_cache(kept)(
            lambda size, *what: Permutation(size, key_of(seed, *what))
        )
        self._mixture: Mixture | None = None
        if sources.weights is not None:
            key = key_of(seed, first_epoch, -1) if shuffle else None
            self._mixture = Mixture(sources.weights, key)
        self._first_indices = [0, *accumulate(sources.sizes)]

    def samples(self, epoch: int, start: int, count: int) -> torch.Tensor:
        """Return samples at consecutive positions of one epoch (int64, see ``sample``)."""
        if self._mixture is None:
            return self._shuffled(0, epoch, start, count) | epoch << EPOCH_SHIFT
        begin = (epoch - self._first_epoch) * self._sources.epoch_size + start
        sources, starts = self._mixture.samples(begin, count)
        pieces: list[tuple[torch.Tensor, int]] = []
        for source, of_source in enumerate(sources.bincount().tolist()):
            pieces += self._pieces(source, self._begins[source] + starts[source], of_source)
        indices = torch.cat([indices for indices, _ in pieces])
        added = torch.tensor([number for _, number in pieces], device="cpu")
        lengths = torch.tensor([len(indices) for indices, _ in pieces], device="cpu")
        # Sorted by source, the samples of each are consecutive.
        found = torch.empty_like(sources)
        found[torch.argsort(sources, stable=True)] = indices + added.repeat_interleave(lengths)
        return found

    def _pieces(self, source: int, position: int, count: int) -> Iterator[tuple[torch.Tensor, int]]:
        """Yield indices in a source, and the number to add to each to make it a sample.

        ``position`` is that of the first one, in all epochs of the source.
        """
        size = self._sources.sizes[source]
        while count:
            epoch, start = divmod(position, size)
            length = min(count, size - start)
            indices = self._shuffled(source, epoch, start, length)
            yield indices, self._first_indices[source] + (epoch << EPOCH_SHIFT)
            position, count = position + length, count - length

    def begins_of(self, other: Sources, epoch: int, start: int) -> tuple[int, ...]:
        """Return with which of its samples each source of the next mixture starts.

        A source of the same number and size continues; one of a different size starts an epoch.
        """
        sizes = self._sources.sizes
        had = [epoch * sizes[0] + start]
        if self._mixture is not None:
            counts = self._mixture.counts((epoch - self._first_epoch) * sum(sizes) + start)
            had = [one + count for one, count in zip(self._begins, counts, strict=True)]
        begins = [
            one if size == new else -(-one // size) * new
            for one, size, new in zip(had, sizes, other.sizes, strict=False)
        ]
        return (*begins, *[0] * (len(other.sizes) - len(begins)))

    def _shuffled(self, source: int, epoch: int, start: int, count: int) -> torch.Tensor:
        size = self._sources.sizes[source]
        if self._shuffle is False:
            return torch.arange(start, start + count, device="cpu")
        if self._shuffle is True or self._shuffle >= size:
            return self._permutation(size, source, epoch).numbers(start, count)
        block = int(self._shuffle)
        found = list(self._shuffled_blocks(size, block, source, epoch, start, count))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _shuffled_blocks(
        self, size: int, block: int, source: int, epoch: int, start: int, count: int
    ) -> Iterator[torch.Tensor]:
        """Shuffle blocks, and inside each. The last block is short, wherever it is placed."""
        blocks = -(-size // block)
        order = self._permutation(blocks, source, epoch)
        missing = blocks * block - size
        after_short = (order.position_of_last + 1) * block - missing
        while count:
            place, begin = divmod(start + missing * (start >= after_short), block)
            number = int(order.numbers(place, 1))
            length = block - missing if number == blocks - 1 else block
            inside = self._permutation(length, source, epoch, number + 1)
            taken = min(count, length - begin)
            yield inside.numbers(begin, taken) + number * block
            start, count = start + taken, count - taken
