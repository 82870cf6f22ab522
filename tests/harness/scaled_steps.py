"""Steps with ``GradScaler`` and clipped gradients, on several ranks and in one process."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from ft_run.training import ElasticBatches
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, MICRO_BATCH, STEPS = 44, 14, 2, 8
BAD = 5
"""The sample whose gradient is infinite in its first epoch: for one parameter, on one rank."""


class Model(nn.Module):
    """A network, and a vector of which only one element is computed from a bad sample."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.vector = nn.Parameter(torch.ones(8))
        self.double()

    def forward(self, inputs: torch.Tensor, factors: torch.Tensor) -> Any:
        """Return the loss of each sample."""
        return self.network(inputs).square().flatten() + (self.vector * factors).sum(1)


class Result(NamedTuple):
    """What ranks and one process must have in common."""

    weights: list[torch.Tensor]
    """After each step, all in one."""
    scales: list[float]
    """Of the losses, after each step."""


def _data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.arange(SAMPLES))


def _factors(indices: torch.Tensor, epoch: int) -> torch.Tensor:
    factors = torch.zeros(len(indices), 8, dtype=torch.float64)
    factors[indices == BAD, 6] = float("inf") if epoch == 0 else 1.0
    return factors


def train(model: Any, rank: int | None = None) -> Result:
    """Train a model.

    Args:
        model: DDP, FSDP2, or one that sees the batches of all ranks.
        rank: pieces grow with it; None: a single process.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    dataset, share = _data(), None if rank is None else rank + 0.5
    data = ElasticBatches(dataset, BATCH, seed=3, micro_batch=MICRO_BATCH, share=share)
    loader = DataLoader(dataset, batch_sampler=data)
    found = Result([], [])
    for step in range(STEPS):
        for inputs, factors, weight, context in _parts(data, loader, step, model, rank):
            with context:
                loss = model(inputs, factors).mean() * weight
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
        found.weights.append(torch.cat([p.detach().flatten() for p in whole]).clone())
        found.scales.append(scaler.get_scale())
    return found


def _parts(
    data: ElasticBatches, loader: "DataLoader[Any]", step: int, model: nn.Module, rank: int | None
) -> Any:
    epoch = data.epoch(step)
    if rank is not None:
        for part in data.parts(loader, step):
            inputs, indices = part.batch
            yield inputs, _factors(indices, epoch), part.weight, part.sync(model)
        return
    indices = data.samples(step)
    yield _data().tensors[0][indices], _factors(indices, epoch), 1.0, torch.enable_grad()


def difference(shape: Callable[[nn.Module], Any], rank: int) -> float:
    """Return the largest difference of a weight after any step; compare the scales as well."""
    single, mine = train(Model()), train(shape(Model()), rank)
    assert mine.scales == single.scales, (mine.scales, single.scales)
    skipped = [step for step in range(1, STEPS) if single.scales[step] < single.scales[step - 1]]
    (bad,) = skipped  # the step of the bad sample changes nothing
    assert torch.equal(mine.weights[bad], mine.weights[bad - 1])
    pairs = zip(mine.weights, single.weights, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)
