"""When gradients are reduced: for each kind of model, no more often than it needs."""

from typing import Any

import pytest
import torch
from ft_run.training import ElasticBatches
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


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
