"""A random order of the numbers below n, computed position by position.

Small orders are sorted by hashes. Large ones need no memory: a Feistel network (Luby and Rackoff:
"How to construct pseudorandom permutations from pseudorandom functions", 1988) permutes pairs of
numbers below a = ceil(sqrt(n)), and numbers that are not below n are permuted again (cycle walking;
Black and Rogaway: "Ciphers with arbitrary finite domains", 2002). For small n a network of eight
rounds is not uniform.
"""

import math
from collections.abc import Sequence

import torch

from .hashing import hashes, key_of

TABLE_SIZE = 1 << 16
"""The largest order that is a table: 0.5 MB."""
_ROUNDS = 8
_MASK = (1 << 32) - 1


class Permutation:
    """A bijection of the numbers below n."""

    def __init__(self, n: int, key: int) -> None:
        """Prepare the order; a table takes up to 5 ms.

        Args:
            n: how many numbers, 1 to 2**40.
            key: from ``key_of``.
        """
        self._table: torch.Tensor | None = None
        if n <= TABLE_SIZE:
            self._table = torch.argsort(hashes(torch.arange(n, device="cpu"), key))
            return
        keys = [key_of(key, number) & _MASK for number in range(_ROUNDS)]
        self._n, self._network = n, [n, math.isqrt(n - 1) + 1, *keys]

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the numbers at some positions (int64)."""
        return permuted([self], positions, [len(positions)])

    def position_of(self, number: int) -> int:
        """Return the position of a number."""
        if self._table is not None:
            return int((self._table == number).nonzero())
        network = _tensor([self._network])
        found = torch.tensor([number], device="cpu")
        while True:
            found = _permuted_back(found, network)
            if int(found) < self._n:
                return int(found)


def permuted(
    orders: Sequence[Permutation], positions: torch.Tensor, counts: Sequence[int]
) -> torch.Tensor:
    """Return the numbers at some positions of several orders; large ones are computed at once.

    Args:
        orders: one or more.
        positions: those of the first order, then those of the second one, … (int64).
        counts: how many of them belong to each order.
    """
    places = list(positions.split(list(counts)))
    large = [index for index, one in enumerate(orders) if one._table is None]
    if large:
        lengths = [counts[index] for index in large]
        network = _tensor([orders[index]._network for index in large])
        network = network.repeat_interleave(torch.tensor(lengths, device="cpu"), dim=1)
        found = _walked(torch.cat([places[index] for index in large]), network).split(lengths)
        for index, numbers in zip(large, found, strict=True):
            places[index] = numbers
    for index, one in enumerate(orders):
        if one._table is not None:
            places[index] = one._table[places[index]]
    return torch.cat(places)


# --- the network ----------------------------------------------------------------------------------


def _tensor(networks: list[list[int]]) -> torch.Tensor:
    """Return a column for each network: n, the side, and the key of each round (int64)."""
    return torch.tensor(networks, device="cpu").T


def _walked(values: torch.Tensor, network: torch.Tensor) -> torch.Tensor:
    """Permute numbers, each by its column of the network, until it is below n."""
    found = _permuted(values, network)
    while (again := found >= network[0]).any():
        found[again] = _permuted(found[again], network[:, again])
    return found


def _permuted(values: torch.Tensor, network: torch.Tensor) -> torch.Tensor:
    _, side, *keys = network.unbind()
    left, right = values // side, values % side
    for key in keys:
        left, right = right, (left + _mixed(right, key)) % side
    return left * side + right


def _permuted_back(values: torch.Tensor, network: torch.Tensor) -> torch.Tensor:
    _, side, *keys = network.unbind()
    left, right = values // side, values % side
    for key in reversed(keys):
        left, right = (right - _mixed(left, key)) % side, left
    return left * side + right


def _mixed(values: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return 32 bits that depend on each number and on its key of 32 bits.

    The steps are those of MurmurHash3's finalizer (Appleby, public domain), on the lower half of an
    int64.
    """
    found = (values ^ key) & _MASK
    found = ((found ^ found >> 16) * 0x85EBCA6B) & _MASK
    found = ((found ^ found >> 13) * 0xC2B2AE35) & _MASK
    return found ^ found >> 16
