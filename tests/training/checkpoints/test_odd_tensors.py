"""Tensors whose data is not an array, or that have none: the first snapshot takes them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ft_run.tests.harness.log_lines import logged
from ft_run.training import Checkpointer
from torch import nn

Given = Callable[..., memoryview]
KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse": lambda value: value.to_sparse(),
    "quantized": lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
    "meta": lambda value: value.to("meta"),
}


def train(folder: Path, tensor: torch.Tensor, total: int, *, saves: bool) -> nn.Module:
    """Train with a tensor in a buffer and in another object; return the model."""
    model = nn.Linear(3, 3)
    model.register_buffer("odd", tensor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    of_optimizer = nn.Module()
    of_optimizer.register_buffer("odd", tensor.detach())
    state = {"model": model, "optimizer": optimizer, "other": of_optimizer}
    every = 2 if saves else None
    for _ in Checkpointer(folder, state, checkpoint_every=every, seed=1).steps(total):
        model.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    return model


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: quantized tensors
@pytest.mark.parametrize("way", ["snapshot", "checkpoint"])
@pytest.mark.parametrize("kind", KINDS)
def test_tensor_without_array_returns(
    tmp_path: Path, memory: Given, capfd: pytest.CaptureFixture[str], kind: str, way: str
) -> None:
    tensor, initial = KINDS[kind](torch.eye(3)), KINDS[kind](torch.ones(3, 3))
    memory(-1)
    train(tmp_path, tensor, 2, saves=way == "checkpoint")
    memory(2 if way == "snapshot" else -1)
    model = train(tmp_path, initial, 3, saves=False)
    assert f"resuming from the {way} of step 2" in logged(capfd)
    found = model.get_buffer("odd")
    assert (found.layout, found.device, found.dtype) == (tensor.layout, tensor.device, tensor.dtype)
    if kind != "meta":
        dense = found.dequantize() if kind == "quantized" else found.to_dense()
        assert torch.equal(dense, torch.eye(3))


def test_tensor_without_data_is_named(
    tmp_path: Path, memory: Given, capfd: pytest.CaptureFixture[str]
) -> None:
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    memory(-1)
    train(tmp_path, freed, 2, saves=False)
    first, second = logged(capfd)
    assert first.startswith("no snapshot of step 1: model.odd has no data: its storage was freed;")
    assert second.endswith("snapshots are disabled, checkpoints only")
