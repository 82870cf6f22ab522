"""Steps for libraries: as many batches in each, seeded, and none of other batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.training.data.schedule import Last
from ft_run.training.library_loop import LibraryBatches, LibraryLoop
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 22


def make(
    *, global_batch: int = 6, micro_batch: int = 2, last: Last = "short", items: int = SAMPLES
) -> LibraryBatches:
    loader = DataLoader(TensorDataset(torch.arange(items)), batch_size=5)
    return LibraryBatches(
        loader,
        global_batch,
        micro_batch=micro_batch,
        shuffle=True,
        seed=3,
        last=last,
    )


@pytest.mark.parametrize(
    ("last", "steps", "samples"), [("short", 4, 22), ("drop", 3, 18), ("carry", 4, 24)]
)
def test_each_step_has_as_many_batches(last: Last, steps: int, samples: int) -> None:
    batches = make(last=last)
    assert (batches.parts, batches.steps_per_epoch) == (3, steps)
    seen = []
    for step in range(steps):
        parts = list(batches.read(step, nn.Linear(1, 1)))
        assert [part.index for part in parts] == [0, 1, 2]
        assert sum(part.weight for part in parts) == pytest.approx(1)
        assert {id(part.batch) for part in parts}.__len__() == 3
        seen += [index for part in parts if part.samples for index in part.batch[0].tolist()]
        assert all((part.weight > 0) == (part.samples > 0) for part in parts)
    assert len(seen) == samples
    assert len(set(seen)) == min(samples, SAMPLES)


def test_batch_norm_refuses_a_batch_of_one_sample() -> None:
    with pytest.raises(ValueError, match="1 sample"):
        list(make(micro_batch=1).read(0, nn.BatchNorm1d(1)))


@pytest.mark.parametrize("other", [{"global_batch": 7}, {"items": 23}, {"last": "drop"}])
def test_other_batches_in_the_same_folder_are_refused(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    first = LibraryLoop(tmp_path, {"model": nn.Linear(1, 1)}, make(), {"checkpoint_every": 1})
    first.complete(1)
    with pytest.raises(ValueError, match="invalid value of global_batch, last or the data"):
        LibraryLoop(tmp_path, {"model": nn.Linear(1, 1)}, make(**other), {})
    assert LibraryLoop(tmp_path, {"model": nn.Linear(1, 1)}, make(), {}).completed == 1


def test_each_step_is_seeded_whatever_was_drawn_before(tmp_path: Path) -> None:
    options = {"checkpoint_every": 1, "seed": 4}
    undisturbed = LibraryLoop(tmp_path, {"model": nn.Linear(1, 1)}, make(), options)
    undisturbed.complete(0)
    undisturbed.complete(1)
    expected = torch.rand(3)
    resumed = LibraryLoop(tmp_path, {"model": nn.Linear(1, 1)}, make(), options)
    torch.rand(5)
    resumed.complete(1)
    assert torch.equal(torch.rand(3), expected)
