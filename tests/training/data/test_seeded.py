"""Random items of a dataset: a function of the sample, in whatever process they are made."""

import random
from typing import Any

import numpy
import pytest
import torch
from ft_run.training import ElasticBatches, seeded
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Noise(Dataset[list[float]]):
    """Items that are random in three ways."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> list[float]:
        return [index, random.random(), float(torch.rand(())), float(numpy.random.rand())]


def items(step: int, **arguments: Any) -> list[list[float]]:
    """Return the items of one step of five."""
    dataset = seeded(Noise())
    data = ElasticBatches(dataset, 5)
    loader: Any = DataLoader(dataset, batch_sampler=data, collate_fn=list, **arguments)
    return [item for part in data.parts(loader, step) for item in part.batch]


def test_items_are_the_same_in_workers_and_in_this_process() -> None:
    for step in (0, 3):
        assert items(step) == items(step, num_workers=2)


def test_items_differ_by_sample_and_epoch() -> None:
    found = [tuple(item[1:]) for step in range(4) for item in items(step)]
    assert len(set(found)) == 20
    assert all(len(set(values)) == 20 for values in zip(*found, strict=True))
    assert seeded(Noise())[3] == seeded(Noise())[3] != seeded(Noise(), seed=1)[3]


@pytest.mark.parametrize("index", [numpy.int64(3), torch.tensor(3), numpy.uint8(3)])
def test_an_index_of_numpy_or_torch(index: Any) -> None:
    assert seeded(Noise())[index] == seeded(Noise())[3]


def test_the_generators_of_this_process_are_left_alone() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(torch.rand(())), float(numpy.random.rand())

    def seed() -> None:
        random.seed(1)
        torch.manual_seed(1)
        numpy.random.seed(1)

    seed()
    expected = draw()
    seed()
    items(0)
    assert draw() == expected


def test_data_without_an_index_is_refused() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(TypeError, match="IterableDataset for dataset: its items have no index"):
        seeded(Endless())
