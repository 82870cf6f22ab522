"""The batches of a loader follow from the step, whatever was read before."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ft_run.tests.harness.log_lines import logged
from ft_run.training import ElasticBatches
from ft_run.training.data import parts
from ft_run.training.data.sample import epoch_of, index_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, TensorDataset

DATA = list(range(100, 150))
"""Sample number i is 100 + i."""


def loader_of(data: ElasticBatches, **arguments: Any) -> "DataLoader[Any]":
    dataset: Any = DATA
    return DataLoader(dataset, batch_sampler=data, **arguments)


def read(data: ElasticBatches, loader: "DataLoader[Any]", step: int) -> list[list[int]]:
    return [part.batch.tolist() for part in data.parts(loader, step)]


def expected(data: ElasticBatches, step: int) -> list[int]:
    return [100 + index for index in data.samples(step).tolist()]


def flat(parts: list[list[int]]) -> list[int]:
    return [one for part in parts for one in part]


@pytest.fixture(
    params=[{}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}],
    ids=["in process", "workers"],
)
def arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return arguments of a loader."""
    found: dict[str, Any] = request.param
    return found


def test_any_step_may_be_read_next(arguments: dict[str, Any]) -> None:
    data = ElasticBatches(DATA, 12, micro_batch=5, seed=1)
    loader = loader_of(data, **arguments)
    for step in (0, 1, 2, 2, 0, 7, 8, 4):
        found = read(data, loader, step)
        assert flat(found) == expected(data, step)
        assert [len(one) for one in found] == ([2] if step % 5 == 4 else [4, 4, 4])
    for part in data.parts(loader, 5):
        assert part.batch.tolist() == expected(data, 5)[:4]
        break
    assert flat(read(data, loader, 6)) == expected(data, 6)
    assert flat(read(data, loader, 5)) == expected(data, 5)


def test_iterators_are_made_only_where_the_position_is_another() -> None:
    made = []

    class Counting(ElasticBatches):
        def batches(self, start: int, until: int | None = None) -> Iterator[list[int]]:
            made.append(start)
            return super().batches(start, until)

    data = Counting(DATA, 12)
    loader = loader_of(data)
    for step in (0, 1, 2, 3, 7, 8):
        read(data, loader, step)
    assert made == [0, 7]


def test_a_state_that_is_loaded_later_holds_at_once(arguments: dict[str, Any]) -> None:
    data, other = ElasticBatches(DATA, 12), ElasticBatches(DATA, 12, seed=5)
    loader = loader_of(data, **arguments)
    assert flat(read(data, loader, 0)) == expected(data, 0) != expected(other, 0)
    data.load_state_dict(other.state_dict())
    assert flat(read(data, loader, 1)) == expected(other, 1)


def test_an_iterator_leaves_the_generator_alone(arguments: dict[str, Any]) -> None:
    data = ElasticBatches(DATA, 12)
    loader = loader_of(data, **arguments)
    torch.manual_seed(3)
    undisturbed = torch.rand(4)
    torch.manual_seed(3)
    read(data, loader, 0)
    read(data, loader, 3)
    assert torch.equal(torch.rand(4), undisturbed)


def test_nothing_is_read_ahead_beyond_the_last_epoch() -> None:
    data = ElasticBatches(DATA, 20)
    assert data.total(2) == 6
    loader = loader_of(data)
    assert flat(read(data, loader, 5)) == expected(data, 5)
    iterator = parts._READINGS[loader].iterator
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("epochs", [1, 2])
def test_training_goes_on_beyond_the_epochs_that_were_asked_for(
    arguments: dict[str, Any], epochs: int
) -> None:
    data = ElasticBatches(DATA, 20)
    loader = loader_of(data, **arguments)
    for step in range(data.total(epochs)):
        assert flat(read(data, loader, step)) == expected(data, step)
    assert data.total(3) == 9  # the iterator has ended, where this one goes on
    for step in range(data.total(epochs), 9):
        data.total(1)
        assert flat(read(data, loader, step)) == expected(data, step)


def test_a_look_at_the_loader_does_not_change_the_samples(arguments: dict[str, Any]) -> None:
    """With persistent workers a loader has a single iterator, which begins again."""
    data = ElasticBatches(DATA, 20)
    loader = loader_of(data, **arguments)
    for step in range(4):
        assert flat(read(data, loader, step)) == expected(data, step)
        assert next(iter(loader)).tolist() == expected(data, 0)


def test_weights_of_parts_add_up_to_one() -> None:
    data = ElasticBatches(DATA, 20, micro_batch=3)
    for step in range(4):
        found = list(data.parts(loader_of(data), step))
        assert sum(part.weight for part in found) == pytest.approx(1)
        assert [part.index for part in found if part.is_last] == [len(found) - 1]
        assert [part.samples for part in found] == [len(part.batch) for part in found]
    found = list(data.parts(loader_of(data), 0, count=lambda batch: (batch < 125).sum()))
    counts = [int((part.batch < 125).sum()) for part in found]
    assert [part.weight for part in found] == [pytest.approx(one / sum(counts)) for one in counts]
    found = list(data.parts(loader_of(data), 0, count=lambda _: 0))
    assert [part.weight for part in found] == [0.0] * 7


def test_evaluation_reads_one_epoch_without_repetition() -> None:
    data = ElasticBatches(DATA, 20, micro_batch=8, shuffle=False)
    loader = loader_of(data)
    assert [one for batch in loader for one in batch.tolist()] == DATA
    assert len(loader) == len(list(loader)) == 8


def test_ranks_without_samples_have_parts_that_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for rank in range(3):
        data = ElasticBatches(22, 20)
        monkeypatch.setattr(data._ranks, "rank", rank)
        monkeypatch.setattr(data._ranks, "size", 3)
        found.append([(one.samples, one.weight) for one in data.ranges(1)])
        assert len(list(data)) == 1 + (rank > 0)
        assert list(data.batches(1, 2)) == [data.samples(1)[-1 if rank == 2 else 0 :][:1].tolist()]
    assert found == [[(0, 0.0)], [(1, 1.5)], [(1, 1.5)]]


def test_what_stands_in_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ElasticBatches(22, 20)
    monkeypatch.setattr(data._ranks, "size", 3)
    monkeypatch.setattr(data._ranks, "total", lambda own: own + 2.0)
    loader: DataLoader[int] = DataLoader(list(range(22)), batch_sampler=data)  # type: ignore[arg-type]  # has a length
    (part,) = data.parts(loader, 1, count=len)
    assert (part.samples, part.weight, len(part.batch)) == (0, 0.0, 1)


class Endless(IterableDataset[int]):
    """Data without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("data", "arguments", "error", "words"),
    [
        (10, {"global_batch": 0}, ValueError, "invalid value 0 for global_batch: expected a"),
        (10, {"global_batch": 2.0}, ValueError, "invalid value 2.0 for global_batch"),
        (0, {}, ValueError, "invalid value 0 for data: expected a whole number >= 1"),
        (10, {"micro_batch": True}, ValueError, "invalid value True for micro_batch"),
        (10, {"last": "pad"}, ValueError, "for last: expected short, drop or carry"),
        (10, {"seed": 1.5}, ValueError, "invalid value 1.5 for seed: expected a whole number"),
        (10, {"shuffle": 1}, ValueError, "invalid value 1 for shuffle: expected True, False or"),
        (
            [3, 4],
            {"weights": [1, 0]},
            ValueError,
            r"invalid value \[1, 0\] for weights: expected fin",
        ),
        (2**41, {}, ValueError, "for data: expected at most 2..40 samples"),
        (3, {"last": "drop"}, ValueError, "the data has only 3 samples"),
        (10, {"share": 0}, ValueError, "invalid value 0 for share: expected a number > 0"),
        (10, {"mesh": "dp"}, ValueError, "invalid value 'dp' for mesh: expected a DeviceMesh"),
        ([3, 4], {"weights": [1.0, float("nan")]}, ValueError, r"value \[1.0, nan\] for weights"),
        ([3, 4], {"weights": [1e-7, 1]}, ValueError, "expected each to be at least a millionth"),
        ([], {"weights": []}, ValueError, r"value \[\] for weights: .* one or more"),
        (10, {"weights": [1]}, ValueError, "for weights: expected one for each source"),
        (Endless(), {}, TypeError, "IterableDataset for data: it has no positions"),
        (object(), {}, TypeError, "type object for data: expected a dataset with a length"),
    ],
)
def test_wrong_arguments(
    data: Any, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ElasticBatches(data, **{"global_batch": 4, **arguments})


def test_loaders_of_others_are_refused() -> None:
    data = ElasticBatches(DATA, 20)
    dataset: Any = DATA
    other: Any = DataLoader(dataset, batch_size=4)
    with pytest.raises(ValueError, match="its batch_sampler is another object"):
        read(data, other, 0)
    with pytest.raises(ValueError, match="its batch_sampler is another object"):
        read(data, loader_of(ElasticBatches(DATA, 20)), 0)
    with pytest.raises(ValueError, match="invalid value False for in_order"):
        read(data, loader_of(data, num_workers=1, in_order=False), 0)


def test_a_part_of_one_sample_for_batch_norm() -> None:
    data = ElasticBatches(5, 4)
    loader = DataLoader(TensorDataset(torch.randn(5, 3)), batch_sampler=data)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    (whole,), (single,) = data.parts(loader, 0), data.parts(loader, 1)
    with whole.sync(model):
        model(whole.batch[0]).sum().backward()
    with pytest.raises(ValueError, match=r"BatchNorm.* expected a larger micro_batch"):
        single.sync(model)
    single.sync(model.eval())
    single.sync(nn.Linear(3, 4))


# --- state ----------------------------------------------------------------------------------------


def resume(old: ElasticBatches, new: ElasticBatches, step: int) -> None:
    """Let new batches continue from a step of others."""
    new.load_state_dict(old.state_dict())
    new.resume(step)


def test_the_order_of_the_state_holds(capfd: pytest.CaptureFixture[str]) -> None:
    old, new = ElasticBatches(50, 12, seed=1), ElasticBatches(50, 12, seed=2, shuffle=4)
    resume(old, new, 3)
    assert logged(capfd) == [
        "the seed of the data stays 1, not 2",
        "the shuffle of the data stays True, not 4",
    ]
    for step in range(12):
        assert torch.equal(new.samples(step), old.samples(step))


def test_another_batch_holds_from_the_resumed_step_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    old, new = ElasticBatches(50, 12), ElasticBatches(50, 7)
    resume(old, new, 2)
    assert logged(capfd) == ["batches of 7 samples from step 2 on, 12 before"]
    third = ElasticBatches(50, 7)
    resume(new, third, 4)
    assert logged(capfd) == []
    epoch = [one for step in range(6) for one in third.samples(step).tolist()]
    assert sorted(epoch) == list(range(50))
    assert [third.size(step) for step in range(7)] == [12, 12, 7, 7, 7, 5, 7]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(60, [12, 12, 12, 12, 2, 12, 12, 12, 12, 12]), (30, [12, 12, 12, 12, 6, 12, 12, 6])],
)
def test_data_of_another_size(
    size: int, expected: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    old, new = ElasticBatches(50, 12), ElasticBatches(size, 12)
    resume(old, new, 2)
    assert logged(capfd) == [f"the data has {size} samples from epoch 1 on, 50 before"]
    assert [new.size(step) for step in range(len(expected))] == expected
    begin = 5 if size > 50 else 2
    epoch = [one for step in range(begin, begin + -(-size // 12)) for one in new.samples(step)]
    assert sorted(map(int, epoch)) == list(range(size))


def test_data_that_is_back_before_the_next_epoch_changes_nothing() -> None:
    old, larger, back = (ElasticBatches(size, 12) for size in (50, 60, 50))
    check_that_nothing_changes(old, larger, back)
    old, back = (ElasticBatches([30, 20], 12, weights=[1, 1]) for _ in range(2))
    check_that_nothing_changes(old, ElasticBatches(60, 12), back)


def check_that_nothing_changes(
    old: ElasticBatches, larger: ElasticBatches, back: ElasticBatches
) -> None:
    resume(old, larger, 2)
    resume(larger, back, 3)
    assert [back.size(step) for step in range(10)] == [old.size(step) for step in range(10)]
    assert back.state_dict() == old.state_dict()


def test_larger_data_and_larger_batches() -> None:
    """Neither is possible alone: no batch of 20 is in the old data."""
    old, new = ElasticBatches(10, 4, last="drop"), ElasticBatches(100, 20, last="drop")
    resume(old, new, 1)
    assert [new.epoch(step) for step in range(7)] == [0, 1, 1, 1, 1, 1, 2]
    smaller = ElasticBatches(10, 4, last="drop")
    resume(new, smaller, 3)
    assert [smaller.epoch(step) for step in range(7)] == [0, 1, 1, 2, 2, 3, 3]


def test_another_rule_for_the_last_batch(capfd: pytest.CaptureFixture[str]) -> None:
    old, new = ElasticBatches(50, 12), ElasticBatches(50, 12, last="carry")
    resume(old, new, 2)
    assert logged(capfd) == ["last='carry' from step 2 on, 'short' before"]
    assert {new.size(step) for step in range(9)} == {12}


def test_a_state_of_a_later_version_is_refused() -> None:
    state = {**ElasticBatches(50, 12).state_dict(), "order": 2}
    with pytest.raises(ValueError, match=r"invalid order 2 in the state .* expected 1"):
        ElasticBatches(50, 12).load_state_dict(state)


def test_a_mixture_of_datasets() -> None:
    two: Any = [[1] * 30, [2] * 10]
    sources: Any = ConcatDataset(two)
    data = ElasticBatches(sources, 8, weights=[0.25, 0.75])
    loader = DataLoader(sources, batch_sampler=data)
    seen = [one for step in range(5) for part in read(data, loader, step) for one in part]
    assert [seen.count(1), seen.count(2)] == [10, 30]
    old, new = data, ElasticBatches([30, 12], 8, weights=[0.25, 0.75])
    resume(old, new, 3)
    had = sum(int((data.samples(step) < 30).sum()) for step in range(3))
    # The first source continues; the second, which has grown, has begun two epochs.
    assert new._schedule.data[-1].begins == (had, 2 * 12) == (4, 24)


def test_a_mixture_in_jobs_of_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ranks read: exact counts of each source, which has epochs of its own."""
    sizes, found = (300, 200, 100), []
    previous = None
    for world, steps in ((2, range(13)), (1, range(13, 20)), (3, range(20, 40))):
        ranks: list[tuple[ElasticBatches, DataLoader[Any]]] = []
        for rank in range(world):
            data = ElasticBatches(list(sizes), 50, weights=[0.5, 0.3, 0.2], micro_batch=9)
            monkeypatch.setattr(data._ranks, "rank", rank)
            monkeypatch.setattr(data._ranks, "size", world)
            if previous is not None:
                resume(previous, data, steps[0])
            ranks.append((data, DataLoader(list(range(600)), batch_sampler=data)))  # type: ignore[arg-type]  # has a length
        for step in steps:
            for data, loader in ranks:
                found += flat(read(data, loader, step))
        previous = ranks[0][0]
    for low, size, count in ((0, 300, 1000), (300, 200, 600), (500, 100, 400)):
        mine = [one - low for one in found if low <= one < low + size]
        assert len(mine) == count
        assert mine[:size] != mine[size : 2 * size]
        for begin in range(0, count, size):
            epoch = mine[begin : begin + size]
            assert len(set(epoch)) == len(epoch)


def test_weights_in_the_same_proportions_change_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    old, new = (ElasticBatches([30, 10], 8, weights=weights) for weights in ([1, 3], [0.25, 0.75]))
    resume(old, new, 2)
    assert logged(capfd) == []
    assert new.state_dict() == old.state_dict()


SINGLE = st.sampled_from([(7,), (9,)])
MIXED = st.sampled_from([(7, 5), (7, 5), (9, 5), (7, 6)])
REST = (st.sampled_from([(1, 1), (3, 1)]), st.integers(1, 11), st.integers(0, 4))


@settings(max_examples=30)
@given(
    st.lists(st.tuples(SINGLE, *REST), min_size=2, max_size=4)
    | st.lists(st.tuples(MIXED, *REST), min_size=2, max_size=4),
    st.sampled_from([True, 3, False]),
)
def test_no_change_repeats_a_sample_or_alters_the_past(
    jobs: list[tuple[tuple[int, ...], tuple[int, ...], int, int]], shuffle: bool | int
) -> None:
    """Sources of the same size continue in another mixture."""
    past: list[list[int]] = []
    seen: list[tuple[int, int, int]] = []
    previous = None
    for sizes, weights, batch, steps in jobs:
        whole: Any = list(sizes) if len(sizes) > 1 else sizes[0]
        shares = weights if len(sizes) > 1 else None
        data = ElasticBatches(whole, batch, shuffle=shuffle, seed=2, weights=shares)
        if previous is not None:
            resume(previous, data, len(past))
        assert [data._samples(step).tolist() for step in range(len(past))] == past
        data._is_seeded = True  # batches have the epochs as well
        for begin in range(len(past)):
            assert list(data.batches(begin, len(past))) == past[begin:]
        for step in range(len(past), len(past) + steps):
            samples = data._samples(step)
            past.append(samples.tolist())
            present = data._schedule.data_of(data.epoch(step)).sources.sizes
            bounds = torch.tensor(present).cumsum(0)
            indices = index_of(samples)
            sources = torch.searchsorted(bounds, indices, right=True)
            within = indices - (bounds - torch.tensor(present))[sources]
            seen += zip(sources.tolist(), epoch_of(samples).tolist(), within.tolist(), strict=True)
        previous = data
    assert len(seen) == len(set(seen))
    if all(sizes == (7, 5) for sizes, *_ in jobs):
        for source, size in enumerate((7, 5)):
            own = [one[1:] for one in seen if one[0] == source]
            assert [epoch for epoch, _ in own] == [number // size for number in range(len(own))]
