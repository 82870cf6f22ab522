"""Which samples each step has: once in an epoch, complete, in range, through changes."""

from fractions import Fraction

import pytest
from ft_run.training.data.order import Sources
from ft_run.training.data.schedule import (
    Data,
    Range,
    Row,
    Schedule,
    cut,
    cut_by_share,
    from_plain,
)
from hypothesis import given
from hypothesis import strategies as st

LAST = st.sampled_from(["short", "drop", "carry"])


def schedule(size: int, batch: int, last: str) -> Schedule:
    return Schedule((Row(0, 0, 0, batch, last),), (Data(0, Sources((size,), None), (0,)),))


def seen(plan: Schedule, steps: range) -> list[tuple[int, int]]:
    """Return epoch and position of each sample of some steps, in order."""
    return [
        (one.epoch, position)
        for step in steps
        for one in plan.ranges(step)
        for position in range(one.start, one.start + one.length)
    ]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("short", [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 2)], [(1, 0, 4)]]),
        ("drop", [[(0, 0, 4)], [(0, 4, 4)], [(1, 0, 4)], [(1, 4, 4)]]),
        ("carry", [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 2), (1, 0, 2)], [(1, 2, 4)]]),
    ],
)
def test_the_end_of_an_epoch(last: str, expected: list[list[tuple[int, int, int]]]) -> None:
    plan = schedule(10, 4, last)
    assert [plan.ranges(step) for step in range(4)] == [
        [Range(*one) for one in ranges] for ranges in expected
    ]


@given(st.integers(1, 60), st.integers(1, 70), LAST, st.integers(1, 5))
def test_each_sample_comes_once_an_epoch(size: int, batch: int, last: str, epochs: int) -> None:
    if last == "drop" and batch > size:
        return
    plan = schedule(size, batch, last)
    total = plan.total(epochs)
    found = seen(plan, range(total))
    each = size // batch * batch if last == "drop" else size
    expected = [(epoch, position) for epoch in range(epochs) for position in range(each)]
    assert found[: len(expected)] == expected
    more = found[len(expected) :]  # a batch that continues after the last epoch
    assert len(more) < batch if last == "carry" else not more
    assert all(plan.epoch(step) < epochs for step in range(total))
    assert plan.epoch(total) >= epochs


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 45), LAST), min_size=1, max_size=4),
)
def test_other_batches_hold_from_a_step_on(size: int, changes: list[tuple[int, int, str]]) -> None:
    plan, step = schedule(size, 3, "carry"), 0
    for steps, batch, last in changes:
        if last == "drop" and batch > size:
            continue
        before = [plan.ranges(number) for number in range(step + steps)]
        step += steps
        at = plan.ranges(step)[0]
        plan = plan.changed(step, batch, last)
        assert [plan.ranges(number) for number in range(step)] == before
        first = plan.ranges(step)[0]
        left_out = last == "drop" and size - at.start < batch
        assert first[:2] == ((at.epoch + 1, 0) if left_out else at[:2])
    found = seen(plan, range(step + 20))
    assert found == sorted(set(found))


@given(
    st.integers(2, 30),
    st.integers(1, 30),
    LAST,
    st.integers(0, 40),
    st.integers(1, 40),
    st.integers(1, 40),
    LAST,
)
def test_other_data_and_other_batches_hold_together(
    size: int, batch: int, last: str, step: int, new: int, new_batch: int, new_last: str
) -> None:
    """Also where the batches of before are larger than the other data, or the other way round."""
    if (last == "drop" and batch > size) or (new_last == "drop" and new_batch > new):
        return
    plan = schedule(size, batch, last)
    ranges = plan.ranges(step)
    present, offset = plan.begin(step)
    assert (present, offset) == ranges[0][:2]
    epoch = present + (offset > 0)
    data = Data(epoch, Sources((new,), None), (0,))
    changed = plan.changed(step, new_batch, new_last, data, at_once=new < size)
    assert [changed.ranges(one) for one in range(step)] == [plan.ranges(one) for one in range(step)]
    found = seen(changed, range(step, step + 60))
    assert found == sorted(set(found))
    assert all(position < (size if e < epoch else new) for e, position in found)
    left_out = new_last == "drop" and offset and size - offset < new_batch
    assert found[0] == ((epoch, 0) if new < size or left_out else (present, offset))
    if new_last != "drop":
        of_epoch = [position for e, position in found if e == epoch]
        assert of_epoch == list(range(new))[: len(of_epoch)]


def test_steps_begin_with_0() -> None:
    with pytest.raises(ValueError, match="invalid value -1 for step: expected a whole number >= 0"):
        schedule(10, 4, "short").epoch(-1)


def test_a_schedule_as_plain_values() -> None:
    sources = Sources((5, 7), (Fraction(1, 3), Fraction(2, 3)))
    plan = Schedule(
        (Row(0, 0, 0, 3, "short"), Row(4, 1, 2, 2, "drop")),
        (Data(0, Sources((12,), None), (0,)), Data(3, sources, (3, 4))),
    )
    assert from_plain(plan.plain()) == plan


@given(st.integers(0, 200), st.integers(1, 40))
def test_pieces_differ_by_one(count: int, pieces: int) -> None:
    found = cut(count, pieces)
    assert [one for piece in found for one in piece] == list(range(count))
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(st.integers(0, 500), st.lists(st.floats(0.01, 100), min_size=1, max_size=12))
def test_pieces_in_proportion(count: int, shares: list[float]) -> None:
    found = cut_by_share(count, shares)
    assert [one for piece in found for one in piece] == list(range(count))
    for piece, share in zip(found, shares, strict=True):
        assert abs(len(piece) - count * share / sum(shares)) <= 1 + 1e-9
