"""Jobs that lose and gain nodes: the samples of each step, and what is learned from them."""

import json
import os
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from ft_run.tests.harness.resized_job import run_resized
from ft_run.training import ElasticBatches
from torch import nn
from torch.utils.data import TensorDataset

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

# Trains a line to be fitted; reads "step:world,…" of the steps that wait for a number of ranks.
SCRIPT = """
import json, os, sys, threading
import torch
import torch.distributed as dist
from ft_run.training import Checkpointer, ElasticBatches, seeded
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

folder, kind, plan, workers, last, noise, epochs = sys.argv[1:8]
worlds = dict(map(int, one.split(":")) for one in plan.split(","))
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("gloo")


class Data(Dataset):
    def __len__(self):
        return 90

    def __getitem__(self, index):
        x = torch.tensor([index / 90, 1.0], dtype=torch.float64)
        return index, x + (0.1 * torch.rand(2) if noise == "random" else 0)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.5 * (noise == "random")))
model.append(nn.Linear(16, 1)).double()
model = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
dataset = seeded(Data())
data = ElasticBatches(dataset, 14, micro_batch=3, seed=5, last=last)
options = {"prefetch_factor": 4, "persistent_workers": True} if workers != "0" else {}
loader = DataLoader(dataset, batch_sampler=data, num_workers=int(workers), **options)
state = {"model": model, "optimizer": optimizer, "data": data}
every = None if kind == "ddp" else 4
checkpointer = Checkpointer(f"{folder}/checkpoints", state, checkpoint_every=every, seed=9)
log = open(f"{folder}/log-{os.getpid()}", "a", buffering=1)
os.write(1, f"rank {rank} is {os.getpid()}\\n".encode())
for step in checkpointer.steps(data, epochs=int(epochs)):
    reached = f"{folder}/reached-{step}"
    if worlds.get(step) == world:
        open(reached, "w").close()
    # Sharded state goes back to a checkpoint: steps that are made again do not wait.
    elif step in worlds and not os.path.exists(reached):
        os.write(1, f"rank {rank} of {world} waits at {step}\\n".encode())
        threading.Event().wait(100)
        os._exit(9)  # the nodes of this test did not come or go
    if os.path.exists(f"{folder}/slow"):
        threading.Event().wait(0.2)
    seen = []
    for part in data.parts(loader, step):
        with part.sync(model):
            index, x = part.batch
            loss = nn.functional.mse_loss(model(x), x[:, :1].sin())
            (loss * part.weight).backward()
        seen += index.tolist() if part.samples else []
    optimizer.step()
    optimizer.zero_grad()
    log.write(json.dumps([step, world, rank, seen]) + "\\n")
whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
if rank == 0:
    values = torch.cat([p.detach().flatten() for p in whole]).tolist()
    expected = [data.samples(step).tolist() for step in range(data.total(int(epochs)))]
    json.dump([expected, values], open(f"{folder}/result", "w"))
dist.destroy_process_group()
"""
# Before the script: rank 1 dies once in each of these steps (the middle of an epoch, its last step,
# the last step of all), and when it has copied these snapshots, before they count.
DEATHS = """
import os, signal, sys, time
from ft_run.training import ElasticBatches
from ft_run.training.checkpoints.snapshot_store import Snapshots
parts, publish = ElasticBatches.parts, Snapshots._now_holds


def published(rank, step):
    return f"{sys.argv[1]}/published-{rank}-{step}"


def die(kind, step):
    moment = f"{kind}-{step}"
    path = f"{sys.argv[1]}/{moment}"
    moments = ("step-3", "step-6", "snapshot-10", "step-20", "snapshot-21")
    if moment in moments and os.environ["RANK"] == "1" and not os.path.exists(path):
        # The last snapshot is completed beside the step, in each rank.
        while kind == "step" and not all(os.path.exists(published(rank, step)) for rank in (0, 1)):
            time.sleep(0.001)
        open(path, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)


def deadly_parts(self, loader, step):
    for part in parts(self, loader, step):
        yield part
        die("step", step)


def deadly_publish(self, index, step, **arguments):
    die("snapshot", step)
    publish(self, index, step, **arguments)
    open(published(os.environ["RANK"], step), "w").close()


ElasticBatches.parts, Snapshots._now_holds = deadly_parts, deadly_publish
"""
SAMPLES, BATCH = 90, 14
PRELOAD = "torch,torch._dynamo,ft_run.training.checkpointer"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Loaders' workers send tensors by Unix sockets in it, whose paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def ft(short_folder: Path, ft: "Launcher") -> "Iterator[Launcher]":
    """A launcher with a short folder for temporary files."""
    ft.temporary = short_folder
    yield ft
    for path in short_folder.glob("pymp-*"):  # of multiprocessing in workers that were killed
        shutil.rmtree(path)


def start(
    ft: "Launcher",
    folder: Path,
    port: int,
    nodes: str,
    ranks: int,
    *arguments: object,
    before: str = "",
) -> "Command":
    """Start one node; ``before`` comes before the script."""
    folder.mkdir(exist_ok=True)
    return ft.start(
        *("--nnodes", nodes, "--nproc-per-node", ranks, "--rdzv-endpoint", f"127.0.0.1:{port}"),
        *("--rdzv-id", f"{ft.mark}{folder.name}", "--max-restarts", 200, "--preload", PRELOAD),
        *("--max-node-failures", "never"),  # kills are no fault of the node
        *("--rescale-delay", "0s", "--rdzv-conf", "last_call_timeout=1,drain_timeout=1"),
        *(ft.script(before + SCRIPT, "train.py"), folder, *arguments),
    )


def records(folder: Path) -> list[tuple[int, int, int, list[int]]]:
    """Return step, world, rank and samples of all steps that any rank has made."""
    lines = [line for path in folder.glob("log-*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def check(folder: Path, last: str = "short", epochs: int = 3) -> list[float]:
    """Check the samples of all steps; return the weights."""
    expected, weights = json.loads((folder / "result").read_text())
    whole = [index for step in expected for index in step]
    each = SAMPLES // BATCH * BATCH if last == "drop" else SAMPLES
    for epoch in range(epochs):
        of_epoch = set(whole[epoch * each : (epoch + 1) * each])
        assert len(of_epoch) == each
        assert of_epoch <= set(range(SAMPLES))
    assert len(whole) - epochs * each in (range(BATCH) if last == "carry" else (0,))
    made: dict[tuple[int, int], dict[int, list[int]]] = {}
    for step, world, rank, samples in records(folder):
        known = made.setdefault((step, world), {}).setdefault(rank, samples)
        assert known == samples  # also where a step was made again
    assert {step for step, _ in made} == set(range(len(expected)))
    for (step, world), of_ranks in made.items():
        if len(of_ranks) == world:
            assert [one for rank in range(world) for one in of_ranks[rank]] == expected[step]
    assert {step for (step, world), ranks in made.items() if len(ranks) == world} == set(
        range(len(expected))
    )
    return list(map(float, weights))


def undisturbed(ft: "Launcher", port: int, *arguments: object) -> list[float]:
    """Return the weights of a job that nothing happens to."""
    folder = ft.folder / "undisturbed"
    command = start(ft, folder, port, "1", 2, *arguments)
    assert command.wait() == 0, command.stderr
    return check(folder, str(arguments[3]), int(str(arguments[5])))


@pytest.mark.parametrize(
    ("kind", "worlds", "workers"),
    [
        ("ddp", [(0, 2), (3, 1), (8, 2)], 0),
        *(
            pytest.param(kind, worlds, workers, marks=pytest.mark.slow)
            for kind in ("ddp", "fsdp2")
            for worlds, workers in [
                ([(0, 2), (3, 1), (8, 2)], 4),
                ([(0, 3), (6, 2), (20, 1)], 0),  # the end of an epoch, and the last step
                ([(0, 1), (9, 3)], 2),
            ]
        ),
    ],
)
def test_jobs_that_change_their_size(
    ft: "Launcher", free_port: int, kind: str, worlds: list[tuple[int, int]], workers: int
) -> None:
    plan = ",".join(f"{step}:{world}" for step, world in worlds)
    arguments = (kind, plan, workers, "short", "exact", 3)
    folder = ft.folder / "job"
    run_resized(worlds, partial(start, ft, folder, free_port, "1:3", 1, *arguments))
    weights = check(folder)
    assert max(abs(a - b) for a, b in zip(weights, learned_alone(), strict=True)) < 1e-9
    if kind == "ddp":  # a node that is new is sent the state: of each world at most a step is lost
        made = {(step, world) for step, world, _, _ in records(folder)}
        assert len(made) - len({step for step, _ in made}) < len(worlds)


def learned_alone() -> list[float]:
    """Return the weights of a plain loop in this process, without noise."""
    torch.manual_seed(0)
    x = torch.tensor([[one / SAMPLES, 1.0] for one in range(SAMPLES)], dtype=torch.float64)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = ElasticBatches(TensorDataset(x), BATCH, seed=5)
    for step in range(data.total(3)):
        batch = x[data.samples(step)]
        nn.functional.mse_loss(model(batch), batch[:, :1].sin()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers", "last", "epochs", "kills"),
    [
        ("ddp", 2, "carry", 60, 20),
        ("ddp", 0, "short", 300, 100),
        ("ddp", 4, "drop", 60, 20),
        ("fsdp2", 0, "short", 60, 20),
    ],
)
def test_jobs_that_are_killed_learn_the_same_bits(
    ft: "Launcher", free_port: int, kind: str, workers: int, last: str, epochs: int, kills: int
) -> None:
    """With dropout and random augmentation, and the same number of ranks."""
    arguments = (kind, "0:2", workers, last, "random", epochs)
    chance = random.Random(free_port)
    folder = ft.folder / "job"
    command = start(ft, folder, free_port, "1", 2, *arguments)
    for kill in range(kills):
        pids = command.expect(r"rank \d is (\d+)", 2 * (kill + 1))[-2:]
        begun = len(records(folder))
        some = partial(has_made, folder, begun + chance.randrange(1, 6), command)
        ft.wait_until(some, "some steps are done")
        os.kill(int(chance.choice(pids)[1]), signal.SIGKILL)
    assert command.wait() == 0, command.stderr
    assert check(folder, last, epochs) == undisturbed(ft, free_port, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_deaths_at_chosen_moments(ft: "Launcher", free_port: int, workers: int) -> None:
    arguments = ("ddp", "0:2", workers, "short", "random", 3)
    folder = ft.folder / "job"
    command = start(ft, folder, free_port, "1", 2, *arguments, before=DEATHS)
    assert command.wait() == 0, command.stderr
    assert len([*folder.glob("step-*"), *folder.glob("snapshot-*")]) == 5
    resumed = [int(step) for step in re.findall("resuming from .* of step (.*)", command.stderr)]
    assert resumed == [3, 6, 9, 20, 20]
    assert check(folder) == undisturbed(ft, free_port, *arguments)


def has_made(folder: Path, count: int, command: "Command") -> bool:
    """Return whether ranks have made so many steps; fail where they will not."""
    if command.process.poll() is not None:
        pytest.fail(f"the job has ended too early: {command.stderr}")
    return len(records(folder)) >= count
