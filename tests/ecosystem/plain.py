"""What the training scripts here share: a model, data, and a loop that knows nothing of ranks."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 3, 8


def network() -> nn.Module:
    """Return a tiny model, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))


def dataset() -> TensorDataset:
    """Return 64 samples, the same each time."""
    inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Go through the batches once."""
    for inputs, wanted in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def plain_loop(world: int) -> nn.Module:
    """Train without ranks: each step sees the batches of all of them."""
    model = network()
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        train(model, optimizer, DataLoader(dataset(), batch_size=BATCH * world))
    return model


def dies_now(victim: int) -> bool:
    """Return whether this process is the rank that is to fail, in the first attempt."""
    env = os.environ
    return int(env["RANK"]) == victim and env["TORCHELASTIC_RESTART_COUNT"] == "0"


def report(
    tensors: Iterable[torch.Tensor],
    expected: Iterable[torch.Tensor],
    *,
    launched_by: str,
    resumed: bool,
    tolerance: float = 1e-6,
) -> None:
    """Print one line: the digest of the weights, and whether they are the expected ones."""
    weights = [tensor.detach() for tensor in tensors]
    data = b"".join(tensor.numpy().tobytes() for tensor in weights)
    pairs = list(zip(weights, expected, strict=True))
    results = {
        "rank": int(os.environ["RANK"]),
        "launched by": launched_by,
        "resumed": resumed,
        "weights": hashlib.sha256(data).hexdigest(),
        "as expected": all(torch.allclose(a, b, atol=tolerance) for a, b in pairs),
    }
    sys.stdout.write("result " + json.dumps(results) + "\n")
    sys.stdout.flush()
