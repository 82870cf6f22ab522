"""The source of each sample of a mixture: exact counts in blocks."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

import torch

from .hashing import hashes, key_of

BLOCK = 1000
"""Number of samples of a block, or 10, 100 or 1000 times as many, so that each has at least one of
each source. At the end of each block, the number of samples of each source is exact, up to
rounding."""
MIN_WEIGHT = Fraction(1, 1000 * BLOCK)
"""Minimum share of the samples per source."""


class Mixture:
    """An endless sequence of sources, each of which goes through its own samples."""

    def __init__(self, weights: Sequence[Fraction], key: int | None) -> None:
        """Weights are at least ``MIN_WEIGHT`` of their sum; ``key`` None interleaves evenly."""
        whole = math.lcm(*(weight.denominator for weight in weights))
        self._ends = [int(end * whole) for end in accumulate(weights, initial=Fraction(0))]
        self._key = key
        self.block = BLOCK
        # With less than one in each, rounding would let a source have fewer than before.
        while self.block * min(weights) < sum(weights):
            self.block *= 10
        self._kept: tuple[int, torch.Tensor] | None = None
        """The block that was created last."""

    def counts(self, samples: int) -> list[int]:
        """Return how many of the first samples come from each source."""
        number, rest = divmod(samples, self.block)
        found = self._at_block(number)
        if rest:
            of_rest = self._block(number)[:rest].bincount(minlength=len(found)).tolist()
            found = [one + more for one, more in zip(found, of_rest, strict=True)]
        return found

    def samples(self, start: int, count: int) -> tuple[torch.Tensor, list[int]]:
        """Return the source of each sample (int64), and each source's count before ``start``."""
        first, last = start // self.block, (start + count - 1) // self.block
        starts = self.counts(start)  # for the first block, which is kept
        sources = torch.cat([self._block(number) for number in range(first, last + 1)])
        begin = start - first * self.block
        return sources[begin : begin + count], starts

    def _at_block(self, number: int) -> list[int]:
        """Return how many samples come from each source before a block."""
        whole = self._ends[-1]
        ends = [
            (2 * number * self.block * end + whole) // (2 * whole) for end in self._ends
        ]  # rounded
        return [after - before for before, after in pairwise(ends)]

    def _block(self, number: int) -> torch.Tensor:
        if self._kept is None or self._kept[0] != number:
            self._kept = number, self._make_block(number)
        return self._kept[1]

    def _make_block(self, number: int) -> torch.Tensor:
        before, after = self._at_block(number), self._at_block(number + 1)
        counts = [end - begin for begin, end in zip(before, after, strict=True)]
        if self._key is not None:
            places = hashes(torch.arange(self.block, device="cpu"), key_of(self._key, number))
            return _of_each(counts)[torch.argsort(places)]
        # Evenly: sample k of n comes at (k + 1/2) / n of the block.
        places = torch.cat(
            [
                (torch.arange(one, dtype=torch.float64, device="cpu") + 0.5) / one
                for one in counts
                if one
            ]
        )
        return _of_each(counts)[torch.argsort(places, stable=True)]


def _of_each(counts: Sequence[int]) -> torch.Tensor:
    repeats = torch.tensor(counts, device="cpu")
    return torch.repeat_interleave(torch.arange(len(counts), device="cpu"), repeats)
