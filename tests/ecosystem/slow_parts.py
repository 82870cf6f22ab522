"""Trains, does one thing for a while that could be taken for a hang and is none, and trains on.

Arguments: what it is, and for how many seconds; of "trains" the file that ends it.
"""

import io
import os
import pty
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 20


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 1))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)


def for_a_while() -> Iterator[None]:
    until = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < until:
        yield


def evaluate(model: DistributedDataParallel) -> None:
    """On all ranks, with no loader that would say that it gets on."""
    plain, errors = network(), []
    for _ in for_a_while():
        inputs = torch.randn(256, 64)
        outputs = plain(inputs)
        errors.append((outputs - inputs.sum(1, keepdim=True).sin()).square().mean().item())


class Samples(Dataset):
    """Each takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return max(1, round(float(sys.argv[2]) / self._seconds))

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.randn(64)


def evaluate_on_rank_0(model: DistributedDataParallel) -> None:
    if dist.get_rank() == 0:
        for batch in DataLoader(Samples(1.0)):
            model.module(batch)
    dist.barrier()


def accumulate(model: DistributedDataParallel) -> None:
    for _ in for_a_while():
        with model.no_sync():
            loss = model(torch.randn(256, 64)).square().mean()
            loss.backward()


def load(model: DistributedDataParallel) -> None:
    """A loader that is merely slow: no step meanwhile, as gradients are accumulated."""
    for batch in DataLoader(Samples(float(sys.argv[2]) / 4), num_workers=1):
        with model.no_sync():
            model(batch).square().mean().backward()


class Disk(io.BytesIO):
    """A disk that is busy for long, once."""

    has_waited = False

    def write(self, data) -> int:
        if not self.has_waited:
            self.has_waited = True
            time.sleep(float(sys.argv[2]))
        return super().write(data)


def save(model: DistributedDataParallel) -> None:
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), Disk())
    dist.barrier()


def compile_it(model: DistributedDataParallel) -> None:
    def compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        time.sleep(float(sys.argv[2]))
        return graph.forward

    torch.compile(network(), backend=compiler)(torch.randn(8, 64))


def debug(model: DistributedDataParallel) -> None:
    """At a terminal, at which a person thinks for a while."""
    if dist.get_rank() == 0:
        terminal, end = pty.openpty()
        os.dup2(end, 0)
        threading.Timer(float(sys.argv[2]), os.write, (terminal, b"continue\n")).start()
        breakpoint()
        os.write(1, b"out of the debugger\n")
    dist.barrier()


PARTS = {
    "evaluates": evaluate,
    "evaluates on rank 0": evaluate_on_rank_0,
    "accumulates": accumulate,
    "loads": load,
    "saves": save,
    "compiles": compile_it,
    "debugs": debug,
}


def train_until_told(model: nn.Module, optimizer: torch.optim.Optimizer, file: Path) -> None:
    os.write(1, b"trains\n")
    is_over = torch.zeros(1)
    while not is_over.item():
        step(model, optimizer)
        is_over += file.exists()
        dist.broadcast(is_over, 0)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        step(model, optimizer)
    if sys.argv[1] == "trains":
        train_until_told(model, optimizer, Path(sys.argv[2]))
    else:
        PARTS[sys.argv[1]](model)
    for _ in range(STEPS):
        step(model, optimizer)
    os.write(1, b"trained\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
