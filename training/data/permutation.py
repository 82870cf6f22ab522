"""A random order of the numbers below n, computed position by position.

Small orders are sorted by hashes. Large ones need no memory: a Feistel network (Luby and Rackoff:
"How to construct pseudorandom permutations from pseudorandom functions", 1988) permutes pairs of
numbers below a = ceil(sqrt(n)), and numbers that are not below n are permuted again (cycle walking;
Black and Rogaway: "Ciphers with arbitrary finite domains", 2002). For small n a network of eight
rounds is not uniform.
"""

import math
from functools import cached_property

import torch

from .hashing import hashes, key_of

TABLE_SIZE = 1 << 16
"""Maximum size of an order that is a table: 0.5 MB."""
_WINDOW = 1 << 13
"""Number of positions that are computed together, because the calls of torch cost more than a few
hundred numbers."""
_ROUNDS = 8
_MASK = (1 << 32) - 1


class Permutation:
    """A bijection of the numbers below n."""

    def __init__(self, n: int, key: int) -> None:
        """Prepare an order of 1 to 2**40 numbers; a table takes up to 5 ms."""
        self._n = n
        self._side = math.isqrt(n - 1) + 1
        self._start, self._window = 0, torch.empty(0, dtype=torch.int64, device="cpu")
        """For a large order, the numbers that were computed last, and the position of the first
        one."""
        self._keys = [key_of(key, number) & _MASK for number in range(_ROUNDS)]
        self._table: torch.Tensor | None = None
        if n <= TABLE_SIZE:
            self._table = torch.argsort(hashes(torch.arange(n, device="cpu"), key))

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the numbers at some positions (int64)."""
        if self._table is not None:
            return self._table[positions]
        found = self._permuted(positions)
        while (again := found >= self._n).any():
            found[again] = self._permuted(found[again])
        return found

    def numbers(self, start: int, count: int) -> torch.Tensor:
        """Return the numbers at consecutive positions (int64); do not modify them."""
        if self._table is not None:
            return self._table[start : start + count]
        begin = start - self._start
        if begin < 0 or begin + count > len(self._window):
            begin, self._start = 0, start
            end = min(start + max(count, _WINDOW), self._n)
            self._window = self(torch.arange(start, end, device="cpu"))
        return self._window[begin : begin + count]

    @cached_property
    def position_of_last(self) -> int:
        """The position of the largest number."""
        return self.position_of(self._n - 1)

    def position_of(self, number: int) -> int:
        """Return the position of a number."""
        if self._table is not None:
            return int((self._table == number).nonzero())
        found = torch.tensor([number], device="cpu")
        while True:
            found = self._permuted_back(found)
            if int(found) < self._n:
                return int(found)

    def _permuted(self, values: torch.Tensor) -> torch.Tensor:
        left, right = values // self._side, values % self._side
        for key in self._keys:
            left, right = right, (left + _mixed(right, key)) % self._side
        return left * self._side + right

    def _permuted_back(self, values: torch.Tensor) -> torch.Tensor:
        left, right = values // self._side, values % self._side
        for key in reversed(self._keys):
            left, right = (right - _mixed(left, key)) % self._side, left
        return left * self._side + right


def _mixed(values: torch.Tensor, key: int) -> torch.Tensor:
    """Return 32 bits that depend on each number and on a key of 32 bits.

    The steps are those of MurmurHash3's finalizer (Appleby, public domain), on the lower half of an
    int64.
    """
    found = (values ^ key) & _MASK
    found = ((found ^ found >> 16) * 0x85EBCA6B) & _MASK
    found = ((found ^ found >> 13) * 0xC2B2AE35) & _MASK
    return found ^ found >> 16
