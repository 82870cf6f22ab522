"""Sets of numbers as intervals, against sets of Python."""

import pytest
from ft_run.rendezvous.work.intervals import Intervals, are_bounds, pairs
from hypothesis import given
from hypothesis import strategies as st

CHANGES = st.lists(st.tuples(st.sampled_from("+-t"), st.integers(0, 20), st.integers(0, 20)))


def numbers(bounds: list[int]) -> list[int]:
    return [number for low, high in pairs(bounds) for number in range(low, high)]


@given(CHANGES, st.integers(0, 20), st.integers(0, 20))
def test_they_are_a_set(changes: list[tuple[str, int, int]], low: int, high: int) -> None:
    expected: set[int] = set()
    found = Intervals()
    for change, first, last in changes:
        if change == "+":
            found.add(first, last)
            expected |= set(range(first, last))
        elif change == "-":
            found.remove(first, last)
            expected -= set(range(first, last))
        else:
            lowest = sorted(expected)[:first]
            assert numbers(found.take(first)) == lowest
            expected -= set(lowest)
        assert numbers(found.bounds) == sorted(expected)
        assert are_bounds(found.bounds, 20)  # as few intervals as there can be
        assert len(found) == len(expected)
        assert bool(found) == bool(expected)
    within = found.within(low, high)
    assert are_bounds(within, 20)
    assert numbers(within) == sorted(expected & set(range(low, high)))


@pytest.mark.parametrize("bounds", [(0,), (1, 1), (2, 1), (0, 5), (0, 2, 2, 3), (0, 1, 3, 2)])
def test_what_are_no_bounds(bounds: tuple[int, ...]) -> None:
    assert not are_bounds(bounds, 4)
