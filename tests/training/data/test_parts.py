"""When gradients are reduced: for each kind of model, no more often than it needs."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.training import ElasticBatches
from ft_run.training.data.part_memory import part_memory
from ft_run.training.worker.device_memory import SUFFIX, VARIABLE
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset


def gradients(model: Any, **arguments: Any) -> list[bool]:
    """Return whether the model has its gradients after each part of two steps."""
    data = ElasticBatches(6, 6, micro_batch=2)
    loader = DataLoader(TensorDataset(torch.ones(6, 3)), batch_sampler=data)
    found = []
    for step in range(2):
        for part in data.parts(loader, step):
            with part.sync(model, **arguments):
                (model(part.batch[0]).sum() * part.weight).backward()
            found.append(next(model.parameters()).grad is not None)
        model.zero_grad()
    return found


@pytest.mark.parametrize(
    ("every", "expected"), [(True, [True, True, True]), (False, [False, False, True])]
)
def test_fsdp2_keeps_shards_of_gradients_unless_they_are_reduced_once(
    mesh: DeviceMesh, every: bool, expected: list[bool]
) -> None:
    model = fully_shard(nn.Linear(3, 4), mesh=mesh)
    assert gradients(model, every=every) == expected * 2


def test_ddp_reduces_in_the_last_part(mesh: DeviceMesh) -> None:
    model = DistributedDataParallel(nn.Linear(3, 4))
    reduced: list[int] = []
    model.register_comm_hook(None, lambda _, bucket: count(reduced, bucket))
    assert gradients(model) == [True] * 6
    assert len(reduced) == 2  # one bucket, in each of two steps


def count(reduced: list[int], bucket: Any) -> Any:
    reduced.append(1)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def compilations(
    monkeypatch: pytest.MonkeyPatch, worlds: list[int], last: Any, epochs: int
) -> list[int]:
    """Return how often a model was compiled until after each step, with worlds in turn."""
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = nn.Linear(3, 4)
    compiled: Any = torch.compile(model, backend=backend)
    dataset = TensorDataset(torch.ones(53, 3))
    data = ElasticBatches(dataset, 24, micro_batch=4, last=last)
    total, found = data.total(epochs), []
    for step in range(total):
        size = worlds[step * len(worlds) // total]
        monkeypatch.setattr(data._ranks, "size", size)
        data._of_size.clear()  # another job has another object
        for part in data.parts(DataLoader(dataset, batch_sampler=data), step):
            with part.sync(compiled):
                (compiled(part.batch[0]).sum() * part.weight).backward()
        found.append(len(graphs))
    torch._dynamo.reset()
    return found


def test_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch divides evenly there is one shape, also in a world of another size.

    The smaller batch at the end of an epoch is another one; torch then compiles for any size.
    """
    assert set(compilations(monkeypatch, [2, 1, 3], "carry", 6)) == {1}
    assert set(compilations(monkeypatch, [2, 1, 3], "drop", 6)) == {1}
    found = compilations(monkeypatch, [2, 1], "short", 6)
    assert found == [1, 1, *[2] * 16]


def test_a_model_is_as_it_was_after_a_part(mesh: DeviceMesh) -> None:
    """A backward pass outside of parts, or after ``break``, reduces gradients."""
    model: Any = fully_shard(nn.Linear(3, 4), mesh=mesh)
    data = ElasticBatches(6, 6, micro_batch=2)
    loader = DataLoader(TensorDataset(torch.ones(6, 3)), batch_sampler=data)
    for part in data.parts(loader, 0):
        with part.sync(model, every=False):
            pass
        break
    model(torch.ones(2, 3)).sum().backward()
    assert model.weight.grad is not None


# --- memory --------------------------------------------------------------------------------------


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that says in which part an accelerator ran out of memory."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    return tmp_path / f"error.json{SUFFIX}"


class Loaded(Dataset[torch.Tensor]):
    """Items of which one is too much for an accelerator."""

    bad = -1

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.ones(3)


def test_memory_that_runs_out_in_a_part_is_reported_with_its_size(mark: Path) -> None:
    data = ElasticBatches(10, 10, micro_batch=4, shuffle=False)  # parts of 3, 3 and 4
    dataset, model = Loaded(), nn.Linear(3, 4)
    loader: DataLoader[torch.Tensor] = DataLoader(dataset, batch_sampler=data)
    for part in data.parts(loader, 0):
        with pytest.raises(torch.OutOfMemoryError), part.sync(model):
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert mark.read_text() == "4"
        with pytest.raises(ValueError, match="other"), part.sync(model):
            raise ValueError("other")
        assert not mark.exists()  # the script has gone on
        with pytest.raises(torch.OutOfMemoryError), part.sync(model):
            raise torch.OutOfMemoryError("CUDA out of memory")
    assert not mark.exists()
    model.eval()
    for part in data.parts(loader, 0):
        with pytest.raises(torch.OutOfMemoryError), part.sync(model):
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert not mark.exists()  # an evaluation
    dataset.bad = 5  # while a part is read
    with pytest.raises(torch.OutOfMemoryError):
        list(data.parts(loader, 0))
    assert mark.read_text() == "4"


def test_the_largest_part_counts_not_what_it_may_have(mark: Path) -> None:
    data = ElasticBatches(10, 10, micro_batch=6)  # two parts of 5
    loader: DataLoader[torch.Tensor] = DataLoader(Loaded(), batch_sampler=data)
    for part in data.parts(loader, 0):
        with pytest.raises(torch.OutOfMemoryError), part.sync(nn.Linear(3, 4)):
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert mark.read_text() == "5"


def test_outside_of_a_part_nothing_is_reported(mark: Path) -> None:
    data = ElasticBatches(10, 10)
    loader: DataLoader[torch.Tensor] = DataLoader(Loaded(), batch_sampler=data)
    with suppress(torch.OutOfMemoryError):
        for _ in data.parts(loader, 0):
            raise torch.OutOfMemoryError("CUDA out of memory")
    assert not mark.exists()
    with suppress(torch.OutOfMemoryError), part_memory(0):  # parts of no ElasticBatches
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("given", "asked", "parts"),
    [("", None, 1), ("", 4, 3), ("2", None, 5), ("2", 4, 5), ("8", 4, 3), ("no", 4, 3)],
)
def test_parts_are_no_larger_than_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, given: str, asked: int | None, parts: int
) -> None:
    monkeypatch.setenv(VARIABLE, given)
    data = ElasticBatches(10, 10, micro_batch=asked)
    assert len(data.ranges(0)) == parts
    assert data.samples(0).tolist() == ElasticBatches(10, 10).samples(0).tolist()
