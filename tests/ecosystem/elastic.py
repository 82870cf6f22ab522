"""Trains with a library in ranks that are forked, killed in some steps, and resumed by others.

Under ft-run it is one rank. Otherwise it plays ``WORLD@STEP …``: so many ranks train until all are
killed in that step (``-``: until the end). It compares the weights with those of a plain loop.
"""

import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

import torch
from ft_run.training import ElasticBatches
from torch import nn
from torch.utils.data import Dataset

SAMPLES, BATCH, MICRO_BATCH, EPOCHS, SEED = 22, 6, 2, 3, 5
LENGTH, WORDS = 6, 11


class Numbers(Dataset):
    """A line to be fitted."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x = torch.tensor([index / SAMPLES, 1.0], dtype=torch.float64)
        return {"index": index, "x": x, "labels": x[:1].sin()}


class Sentences(Dataset):
    """Sequences of tokens, of which some are ignored."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        words = torch.arange(LENGTH) * (index + 2) % WORDS
        labels = torch.where(torch.arange(LENGTH) < index % LENGTH, -100, words)
        return {"index": index, "input_ids": words, "labels": labels}


def network(dropout: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)
    ).double()


class Log:
    """Notes what a rank computes, and kills it in a step."""

    def __init__(self, folder: Path, deadly: int | None) -> None:
        self.file = (folder / f"log-{os.getpid()}").open("a", buffering=1)
        self.deadly = deadly

    def note(self, step: int, index: torch.Tensor) -> None:
        if step == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        world, rank = os.environ["WORLD_SIZE"], os.environ["RANK"]
        print(json.dumps([step, int(world), int(rank), index.tolist()]), file=self.file)


def plain_loop(model: nn.Module, dataset: Dataset, loss, per_epoch: bool) -> None:
    """Train in one process: each step sees the batch of all ranks."""
    data = ElasticBatches(dataset, BATCH, seed=SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    every = data.total(1) if per_epoch else 1
    for step in range(data.total(EPOCHS)):
        items = [dataset[index] for index in data.samples(step).tolist()]
        batch = {name: torch.stack([torch.as_tensor(one[name]) for one in items]) for name in items[0]}
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        if (step + 1) % every == 0:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9


def one_rank(library: str, folder: Path, dropout: float, deadly: int | None) -> None:
    torch.set_num_threads(1)
    module = importlib.import_module(f"elastic_{library.partition('-')[0]}")
    values, is_first = module.train(library, folder, dropout, Log(folder, deadly))
    if is_first:
        whole = torch.cat([value.detach().flatten() for value in values]).tolist()
        (folder / "result").write_text(json.dumps(whole))


def play(library: str, folder: Path, dropout: float, world: int, deadly: int | None) -> None:
    """Fork the ranks of a job that ends, or of which the last rank is killed in a step."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world), "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "elastic",
    }  # fmt: skip
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            one_rank(library, folder, dropout, deadly if rank == world - 1 else None)
            sys.stdout.flush()
            os._exit(0)
        pids.append(pid)
    if deadly is not None:
        _, status = os.waitpid(pids.pop(), 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    codes = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    assert codes <= ({0} if deadly is None else {-signal.SIGKILL}), codes


def main() -> None:
    library, folder, dropout = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    if "RANK" in os.environ:
        deadly = dict(map(int, one.split(":")) for one in sys.argv[4:])
        life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
        one_rank(library, folder, dropout, deadly.get(life) if is_last else None)
        return
    module = importlib.import_module(f"elastic_{library.partition('-')[0]}")
    for one in sys.argv[4:]:
        world, _, deadly_step = one.partition("@")
        play(library, folder, dropout, int(world), int(deadly_step) if deadly_step else None)
    del os.environ["WORLD_SIZE"]
    expected = module.expected(library)
    found = torch.tensor(json.loads((folder / "result").read_text()), dtype=torch.float64)
    whole = torch.cat([value.detach().flatten() for value in expected]).double()
    print(f"difference {(found - whole).abs().max().item():.3g}")


if __name__ == "__main__":
    main()
