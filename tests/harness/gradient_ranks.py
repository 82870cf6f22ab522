"""Four ranks compute gradients in parts; each is compared with that of one process.

    python -m ft_run.tests.harness.gradient_ranks FILE

Prints the largest difference of each case as JSON. The ranks are forks of one process, which
imports torch once.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # which DDP and optimizers import: once, before the forks
import torch.distributed as dist
from ft_run.tests.harness import scaled_steps
from ft_run.training import ElasticBatches
from ft_run.training.data.data_ranks import DataRanks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WORLD = 4
SAMPLES, IGNORED = 44, -100


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 3, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (SAMPLES, 3), generator=generator)
    labels[::3, 1:] = IGNORED  # tokens that do not count, of some samples
    return TensorDataset(inputs, labels)


def loss_of(model: nn.Module, batch: Any, *, of_tokens: bool) -> Any:
    """Return a mean over tokens, or over samples: then of the first token of each."""
    inputs, labels = batch
    if of_tokens:
        return nn.functional.cross_entropy(
            model(inputs).flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
    return nn.functional.cross_entropy(model(inputs[:, 0]), labels[:, 0])


def tokens(batch: Any) -> Any:
    return (batch[1] != IGNORED).sum()


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp2(model: nn.Module) -> Any:
    return fully_shard(model)


def hsdp(model: nn.Module) -> Any:
    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")))


def tensor_parallel(model: nn.Module) -> Any:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, MESH["tp"], plan)
    return fully_shard(model, mesh=MESH["dp"])


MESH: Any = None


def difference(
    shape: Callable[[nn.Module], Any],
    *,
    of_tokens: bool = False,
    every: bool = True,
    mesh: Any = None,
    steps: int = 4,
    **arguments: Any,
) -> float:
    """Return the largest difference of a gradient in some steps, of which one is short."""
    data_set = make_data()
    single, model = make_model(), shape(make_model())
    batches = ElasticBatches(data_set, 14, seed=3, mesh=mesh, **arguments)
    loader = DataLoader(data_set, batch_sampler=batches)
    found = 0.0
    for step in range(steps):
        model.zero_grad()
        for part in batches.parts(loader, step, count=tokens if of_tokens else None):
            with part.sync(model, every=every):
                (loss_of(model, part.batch, of_tokens=of_tokens) * part.weight).backward()
        single.zero_grad()
        rows = [data_set[index] for index in batches.samples(step)]
        whole = [torch.stack(one) for one in zip(*rows, strict=True)]
        loss_of(single, whole, of_tokens=of_tokens).backward()
        for mine, expected in zip(model.parameters(), single.parameters(), strict=True):
            gradient: Any = mine.grad
            if isinstance(gradient, DTensor):
                gradient = gradient.full_tensor()
            found = max(found, float((gradient - expected.grad).abs().max()))
    return found


def gradients_after_parts(model: Any) -> list[bool]:
    """Return whether a model has its gradients after each part of a step."""
    data_set = make_data()
    batches = ElasticBatches(data_set, 14, micro_batch=2)
    loader = DataLoader(data_set, batch_sampler=batches)
    found = []
    for part in batches.parts(loader, 0):
        with part.sync(model):
            (loss_of(model, part.batch, of_tokens=False) * part.weight).backward()
        found.append(next(model.parameters()).grad is not None)
    return found


def run(rank: int, file: str) -> None:
    global MESH
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{file}", world_size=WORLD, rank=rank)
    MESH = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found = {
        "ddp, one part": difference(ddp),
        "ddp, several parts": difference(ddp, micro_batch=2),
        "ddp, by share": difference(ddp, micro_batch=2, share=rank + 0.5),
        "ddp, tokens": difference(ddp, of_tokens=True, micro_batch=2),
        "fsdp2, several parts": difference(fsdp2, micro_batch=2),
        "fsdp2, reduced once": difference(fsdp2, micro_batch=2, every=False),
        "fsdp2, tokens by share": difference(fsdp2, of_tokens=True, share=4.0 - rank),
        "hsdp, several parts": difference(hsdp, micro_batch=2),
        "tensor parallel": difference(
            tensor_parallel, mesh=MESH["dp"], micro_batch=2, of_tokens=True
        ),
        "ddp, scaled and clipped": scaled_steps.difference(ddp, rank),
        "fsdp2, scaled and clipped": scaled_steps.difference(fsdp2, rank),
        "hsdp, scaled and clipped": scaled_steps.difference(hsdp, rank),
    }
    both = DataRanks(MESH)  # data parallel over two dimensions
    sums = [both.rank - rank, both.size, both.total(rank + 1), both.gather(rank)]
    over_replicas = gradients_after_parts(hsdp(make_model()))
    try:
        difference(tensor_parallel, steps=1)
    except ValueError as error:
        words = str(error)
    if rank == 0:
        known = {"differences": found, "without a mesh": words, "over two": sums}
        print(json.dumps({**known, "over replicas": over_replicas}))
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks; exit with 1 if one fails."""
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            run(rank, sys.argv[1])
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(int(any(statuses)))


if __name__ == "__main__":
    main()
