"""State that is sharded (FSDP2, tensor parallel): each rank has its part of it, kills harm none."""

import os
import random
import signal
import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

SCRIPT = """
import hashlib, os, sys, threading
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from ft_run.training import Checkpointer

kind, folder, total, every = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
# Of 257 rows the ranks have parts that differ; of 3 values one of 4 ranks has none.
width = 257 if kind == "fsdp2" else 240
model = nn.Sequential(nn.Linear(200, width), nn.Tanh(), nn.Linear(width, 3), nn.BatchNorm1d(3))
if "tp" in kind:
    mesh = init_device_mesh("cpu", (size,))
    if kind == "fsdp2+tp":
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"] if kind == "fsdp2+tp" else mesh, plan)
    if kind == "fsdp2+tp":
        fully_shard(model, mesh=mesh["dp"])
else:
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

def digest():
    values = list(model.state_dict().values())
    for p in model.parameters():
        values += optimizer.state[p].values() if p in optimizer.state else ()
    values = [v.full_tensor() if isinstance(v, DTensor) else v for v in values]
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in values)).hexdigest()

def say(words):
    os.write(1, f"{words}\\n".encode())

state = {"model": model, "optimizer": optimizer}
checkpointer = Checkpointer(f"{folder}/checkpoints", state, checkpoint_every=every or None)
begun = None
for number in checkpointer.steps(total):
    if begun is None:
        begun = number
        life = os.environ["TORCHELASTIC_RESTART_COUNT"]
        say(f"life {life} of rank {rank} of {size} is {os.getpid()} from {number} with {digest()}")
    elif number == begun + 2:
        say(f"life {life} of rank {rank} goes on")
    torch.manual_seed(number)
    optimizer.zero_grad()
    model(torch.randn(4, 200)).square().sum().backward()
    optimizer.step()
    if "ALL" in os.environ or every and (number + 1) % every == 0:
        # Before there is a checkpoint of it.
        say(f"rank {rank} of {size} at {number + 1} has {digest()}")
    threading.Event().wait(0.005)
say(f"rank {rank} of {size} ends with {digest()}")
dist.destroy_process_group()
"""
PRELOAD = ("--preload", "torch,torch._dynamo,ft_run.training.checkpointer")


def ends(command: "Command", ranks: int) -> set[str]:
    """Return the digests that the ranks ended with."""
    assert command.wait() == 0, command.stderr
    return {match[1] for match in command.expect(r"ends with (\w+)", ranks)}


def train(ft: "Launcher", kind: str, ranks: int, steps: int, kills: int) -> set[str]:
    """Train on one node with ranks that are killed at any moment."""
    folder = ft.folder / f"{kind}-{kills}"
    folder.mkdir()
    command = ft.start(
        *("--standalone", "--nproc-per-node", ranks, "--max-restarts", kills, *PRELOAD),
        *(ft.script(SCRIPT, "train.py"), kind, folder, steps, 0),
    )
    before = 0
    for life in range(kills):
        pattern = rf"life {life} of rank \d of {ranks} is (\d+) from (\d+)"
        found = command.expect(pattern, ranks)
        (begun,) = {int(match[2]) for match in found}
        assert begun >= before
        before = begun
        if life % 2 == 0:
            command.expect(f"life {life} of rank . goes on", ranks)
        threading.Event().wait(random.random() * 0.4)
        os.kill(int(random.choice(found)[1]), signal.SIGKILL)
    if kills:
        last = command.expect(rf"life {kills} of rank \d of {ranks} is (\d+) from (\d+)", ranks)
        assert min(int(match[2]) for match in last) > 0
    return ends(command, ranks)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "ranks"), [("fsdp2", 2), ("fsdp2", 3), ("tp", 2), ("fsdp2+tp", 4)]
)
def test_ranks_that_are_killed(ft: "Launcher", kind: str, ranks: int) -> None:
    undisturbed = train(ft, kind, ranks, 200, 0)
    assert len(undisturbed) == 1
    assert train(ft, kind, ranks, 200, 4) == undisturbed


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fsdp2", pytest.param("tp", marks=pytest.mark.slow)])
def test_what_a_failed_job_leaves_is_a_checkpoint(ft: "Launcher", kind: str) -> None:
    job = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, *PRELOAD)
    arguments = (ft.script(SCRIPT, "train.py"), kind, ft.folder, 30, 1000)
    command = ft.start(*job, *arguments, env={"ALL": "1"})
    for life in (0, 1):
        found = command.expect(rf"life {life} of rank \d of 2 is (\d+)", 2)
        command.expect(f"life {life} of rank . goes on", 2)
        os.kill(int(found[1][1]), signal.SIGKILL)
    assert command.wait() == 1
    (saved,) = command.expect(r"checkpoint of step (\d+) saved")
    (had, *_) = command.expect(rf"rank \d of 2 at {saved[1]} has (\w+)")
    command = ft.start(*job, *arguments)
    assert len(ends(command, 2)) == 1
    begun = command.expect(r"life 0 of rank \d of 2 is \d+ from (\d+) with (\w+)", 2)
    assert {match.groups() for match in begun} == {(saved[1], had[1])}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["fsdp2", "tp"])
def test_another_number_of_ranks_goes_on_from_the_checkpoint(ft: "Launcher", kind: str) -> None:
    script, known = ft.script(SCRIPT, "train.py"), ""
    for life, ranks in enumerate((2, 3, 1, 4, 2)):
        steps = 10 * (life + 1)
        command = ft.run(
            *("--standalone", "--nproc-per-node", ranks, *PRELOAD),
            *(script, kind, ft.folder, steps, 10),
            env={"LOGLEVEL": "DEBUG"},
        )
        assert command.process.returncode == 0, command.stderr
        begun = command.expect(r"life 0 of rank \d of \d is \d+ from (\d+) with (\w+)", ranks)
        assert {int(match[1]) for match in begun} == {10 * life}
        command.expect(f"checkpoint of step {steps} saved")  # so says the saver
        if known:
            assert {match[2] for match in begun} == {known}
        (known,) = {match[1] for match in command.expect(r"ends with (\w+)", ranks)}
