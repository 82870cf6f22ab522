"""The order of samples: the same for ever, a bijection, uniform, and exact in mixtures."""

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from ft_run.training.data.hashing import hashes, key_of
from ft_run.training.data.mixture import BLOCK, Mixture
from ft_run.training.data.order import Order, Sources
from ft_run.training.data.permutation import TABLE_SIZE, Permutation
from ft_run.training.data.sample import EPOCH_SHIFT, epoch_of, index_of
from hypothesis import given, settings
from hypothesis import strategies as st


def order(
    sizes: list[int], seed: int, shuffle: bool | int, weights: list[str] | None = None
) -> Order:
    shares = tuple(map(Fraction, weights)) if weights is not None else None
    return Order(Sources(tuple(sizes), shares), seed, shuffle)


E1, E2, E3 = (epoch << EPOCH_SHIFT for epoch in (1, 2, 3))


@pytest.mark.parametrize(
    ("arguments", "place", "expected"),
    [
        (([1], 0, True), (0, 0, 1), [0]),
        (([2], 0, True), (1, 0, 2), [E1, E1 + 1]),
        (([5], 7, True), (0, 0, 5), [0, 3, 1, 2, 4]),
        (([5], 7, True), (1, 0, 5), [E1, E1 + 2, E1 + 1, E1 + 3, E1 + 4]),
        (([65536], 1, True), (0, 65532, 4), [50239, 44330, 14867, 16947]),
        (([65537], 1, True), (0, 0, 4), [11084, 44766, 45234, 40015]),
        (
            ([10**6], 1, True),
            (3, 500000, 4),
            [E3 + 107780, E3 + 753928, E3 + 901399, E3 + 125026],
        ),
        (
            ([10**10], -1, True),
            (0, 9999999996, 4),
            [5477818572, 7505434613, 9062372597, 873641595],
        ),
        (
            ([10**10], 2**70, 4096),
            (0, 4094, 4),
            [4581507651, 4581509913, 5882234319, 5882235964],
        ),
        (([10], 1, 4), (0, 0, 10), [4, 6, 5, 7, 3, 2, 1, 0, 9, 8]),
        (([7], 0, False), (2, 3, 3), [E2 + 3, E2 + 4, E2 + 5]),
        (
            ([5, 3], 1, True, ["1/4", "3/4"]),
            (0, 0, 8),
            [7, 6, 4, 5, E1 + 5, E1 + 6, 3, E1 + 7],
        ),
        (
            ([4, 4], 0, False, ["1/2", "1/2"]),
            (1, 0, 8),
            [E1, E1 + 4, E1 + 1, E1 + 5, E1 + 2, E1 + 6, E1 + 3, E1 + 7],
        ),
        (
            ([70000, 50, 10**6], 3, True, ["2/5", "1/5", "2/5"]),
            (0, 500, 8),
            [E2 + 70025, E2 + 70011, 970982, 552092, E2 + 70049, 25214, 61849, 46345],
        ),
        (
            ([30, 70000], 3, 4, ["1/2", "1/2"]),
            (0, 96, 8),
            [E1 + 15, 45737, E1 + 12, E1 + 13, E1 + 29, E1 + 28, 45735, 45736],
        ),
    ],
)
def test_the_order_never_changes(
    arguments: Any, place: tuple[int, int, int], expected: list[int]
) -> None:
    """A job resumes years later; if this fails, ``ORDER_VERSION`` needs a successor beside it."""
    assert order(*arguments).samples(*place).tolist() == expected


def test_keys_and_hashes_never_change() -> None:
    assert key_of(1, 2, 3) == 0x0D0734750FDE362B3
    assert hashes(torch.arange(2), key_of(1)).tolist() == [
        -2529857523242969672,
        6791897765849424158,
    ]


SIZES = st.integers(1, 300) | st.integers(TABLE_SIZE - 2, TABLE_SIZE + 300)


@settings(max_examples=60)
@given(SIZES, st.integers(0, 2**64 - 1))
def test_a_permutation_has_each_number_once(n: int, key: int) -> None:
    permutation = Permutation(n, key)
    found = permutation(torch.arange(n))
    assert torch.equal(found.sort().values, torch.arange(n))
    for start in (0, n // 3, n // 3 + 1, n // 2, n // 3):
        count = min(n - start, 70)
        assert torch.equal(permutation.numbers(start, count), found[start : start + count])
    for position in {0, n // 2, n - 1}:
        assert permutation.position_of(int(found[position])) == position


@given(st.integers(TABLE_SIZE + 1, 1 << EPOCH_SHIFT), st.integers(0, 2**64 - 1))
def test_large_permutations_go_back(n: int, key: int) -> None:
    permutation = Permutation(n, key)
    positions = torch.tensor([0, n // 3, n - 1])
    found = permutation(positions)
    assert all(0 <= one < n for one in found.tolist())
    assert [permutation.position_of(one) for one in found.tolist()] == positions.tolist()


@given(st.integers(1, 200), st.integers(2, 50), st.integers(0, 9), st.integers(1, 37))
def test_blocks_come_as_wholes(size: int, block: int, epoch: int, step: int) -> None:
    data = order([size], 4, block)
    found: list[int] = []
    for start in range(0, size, step):
        part = data.samples(epoch, start, min(step, size - start))
        assert set(epoch_of(part).tolist()) == {epoch}
        found += index_of(part).tolist()
    assert sorted(found) == list(range(size))
    if block < size:
        changes = sum(one // block != two // block for one, two in pairwise(found))
        assert changes == -(-size // block) - 1


def chi_square(counts: list[int], outcomes: int) -> float:
    """Return the statistic over its degrees of freedom: about 1 for equal chances."""
    expected = sum(counts) / outcomes
    found = sum((one - expected) ** 2 for one in counts) / expected
    return (found + (outcomes - len(counts)) * expected) / (outcomes - 1)


@pytest.mark.parametrize(("n", "tries"), [(2, 2000), (3, 3000), (4, 6000), (5, 8000)])
def test_all_orders_of_a_few_are_as_likely(n: int, tries: int) -> None:
    numbers = torch.arange(n)
    counts = Counter(
        tuple(Permutation(n, key_of(9, key))(numbers).tolist()) for key in range(tries)
    )
    outcomes = math.factorial(n)
    assert chi_square(list(counts.values()), outcomes) < 1 + 5 / math.sqrt(outcomes)


@pytest.mark.parametrize("n", [1000, TABLE_SIZE + 1, 10**6, 10**10])
def test_positions_and_pairs_are_uniform(n: int) -> None:
    bins, tries = 8, 3000
    places = torch.tensor([0, 1, n // 2, n - 1])
    one: Counter[int] = Counter()
    two: Counter[tuple[int, int]] = Counter()
    for key in range(tries):
        found = (Permutation(n, key_of(3, key))(places) * bins // n).tolist()
        one.update(found)
        two.update([(found[0], found[1]), (found[2], found[3])])
    assert chi_square(list(one.values()), bins) < 3
    assert chi_square(list(two.values()), bins**2) < 1.7


def test_epochs_and_seeds_have_different_orders() -> None:
    found = {
        tuple(index_of(order([100], seed, True).samples(epoch, 0, 100)).tolist())
        for seed in (0, 1, -1)
        for epoch in range(3)
    }
    assert len(found) == 9


# --- mixtures ---------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    st.integers(0, 5000),
    st.integers(1, 3000),
    st.booleans(),
)
def test_counts_of_a_mixture_are_exact(
    weights: list[int], start: int, count: int, shuffles: bool
) -> None:
    mixture = Mixture([Fraction(one) for one in weights], 5 if shuffles else None)
    for blocks in (1, 3):
        samples = blocks * mixture.block
        for found, weight in zip(mixture.counts(samples), weights, strict=True):
            assert abs(found - Fraction(weight, sum(weights)) * samples) <= 1
    before, after = mixture.counts(start), mixture.counts(start + count)
    sources, starts = mixture.samples(start, count)
    assert len(sources) == count
    assert starts == before
    for source in range(len(weights)):
        assert int((sources == source).sum()) == after[source] - before[source]


def test_sources_with_less_than_a_thousandth() -> None:
    """In blocks of 1000, rounding would give the second one -1 sample in some."""
    weights = [Fraction(one) for one in (1, 1, 1000, 1000, 1, 106)]
    mixture, plain = Mixture(weights, 5), Mixture(weights[2:4], 5)
    assert [plain.block, mixture.block] == [BLOCK, 10 * BLOCK]
    counts = [mixture.counts(blocks * mixture.block) for blocks in range(50)]
    for before, after in pairwise(counts):
        assert min(end - begin for begin, end in zip(before, after, strict=True)) > 0


@pytest.mark.parametrize("shuffle", [True, 3, False])
def test_each_source_of_a_mixture_has_epochs_of_its_own(shuffle: bool | int) -> None:
    data = order([10, 25], 3, shuffle, ["0.8", "0.2"])
    whole = torch.cat([data.samples(epoch, 0, 35) for epoch in range(20)])
    parts = torch.cat(
        [data.samples(epoch, start, 7) for epoch in range(20) for start in range(0, 35, 7)]
    )
    assert torch.equal(whole, parts)
    for low, size in ((0, 10), (10, 25)):
        mine = [one for one in whole.tolist() if low <= index_of(one) < low + size]
        for begin in range(0, len(mine) - size + 1, size):
            epoch = mine[begin : begin + size]
            assert {epoch_of(one) for one in epoch} == {begin // size}
            assert sorted(index_of(one) - low for one in epoch) == list(range(size))


MIXED = (Fraction(4, 5), Fraction(1, 5))


@pytest.mark.parametrize(
    ("old", "place", "new", "expected"),
    [
        (Sources((10, 25), MIXED), (0, 0), Sources((10, 25), MIXED), (0, 0)),
        (Sources((10, 25), MIXED), (20, 5), Sources((10, 25), MIXED), (564, 141)),
        (
            Sources((10, 25), MIXED),
            (20, 5),
            Sources((11, 25, 3), (*MIXED, *MIXED[:1])),
            (627, 141, 0),
        ),
        (Sources((10, 25), MIXED), (20, 5), Sources((10,), MIXED[:1]), (564,)),
        (Sources((10,), None), (3, 4), Sources((10, 5), MIXED), (34, 0)),
        (Sources((10,), None), (3, 4), Sources((20, 5), MIXED), (80, 0)),
    ],
)
def test_sources_of_the_same_size_continue_in_another_mixture(
    old: Sources, place: tuple[int, int], new: Sources, expected: tuple[int, ...]
) -> None:
    assert Order(old, 3, False).begins_of(new, *place) == expected


def test_a_source_continues_in_the_middle_of_its_epoch() -> None:
    sources = Sources((10, 25), MIXED)
    begun = Order(sources, 3, True, first_epoch=2, begins=(14, 30))
    found = begun.samples(2, 0, 35).tolist()
    undisturbed = Order(Sources((10,), None), 3, True)
    own = [one for one in found if index_of(one) < 10]
    assert own[:6] == undisturbed.samples(1, 4, 6).tolist()
    assert own[6:16] == undisturbed.samples(2, 0, 10).tolist()
    assert {epoch_of(one) for one in found if index_of(one) >= 10} == {1}


def test_the_default_device_does_not_matter() -> None:
    for shuffle in (True, 3, False):
        data = order([70000, 10], 3, shuffle, ["1/2", "1/2"])
        expected = data.samples(1, 70, 40)
        with torch.device("meta"):
            found = order([70000, 10], 3, shuffle, ["1/2", "1/2"]).samples(1, 70, 40)
        assert torch.equal(found, expected)
