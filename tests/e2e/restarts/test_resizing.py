"""Planned changes of the world's size lose no step: all ranks save the state of one step first."""

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

# Ends some steps after the world has had the last of the sizes. Each line of a step has the digest
# of the state after it, and the first line of each life that of the state before it.
SCRIPT = """
import hashlib, os, sys, threading
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from ft_run.training import Checkpointer

kind, folder, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Linear(16, 33)
if kind == "fsdp2":
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
else:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())

def say(words):
    values = list(model.state_dict().values())
    for p in model.parameters():
        values += optimizer.state[p].values() if p in optimizer.state else ()
    values = [v.full_tensor() if isinstance(v, DTensor) else v for v in values]
    digest = hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in values)).hexdigest()
    os.write(1, f"rank {rank} of {size} {words} with {digest}\\n".encode())

state = {"model": model, "optimizer": optimizer}
checkpointer = Checkpointer(folder, state, checkpoint_every="10min")
begun = checkpointer.restore()
say(f"begins at {begun}")
for number in checkpointer.steps(100_000):
    optimizer.zero_grad()
    model(torch.ones(2, 16) * number).square().sum().backward()
    optimizer.step()
    say(f"has done {number}")
    if size == last and number == begun + 4:
        break
    threading.Event().wait(0.01)
os._exit(0)
"""
PRELOAD = ("--preload", "torch,torch._dynamo,torch.distributed.fsdp,ft_run.training.checkpointer")


def options(ft: "Launcher", port: int, last_call_s: int, *more: object) -> tuple[object, ...]:
    return (
        *("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", ft.mark),
        *("--rescale-delay", 0, "--rdzv-conf", f"last_call_timeout={last_call_s}", *more),
    )


def grow(ft: "Launcher", port: int, *script: object) -> tuple["Command", "Command"]:
    """Have a second node join while the first one trains alone; return both at their end."""
    job = options(ft, port, 0, *script)
    host = ft.start(*job)
    host.expect("rank 0 of 1 has done 3")
    guest = ft.start(*job)
    assert [host.wait(), guest.wait()] == [0, 0], host.stderr + guest.stderr
    return host, guest


def check_no_step_is_lost(node: "Command") -> int:
    """Check that its rank has done each step once; return the first one of its last world."""
    done = [int(step) for step in re.findall(r"rank \d of \d has done (\d+)", node.stdout)]
    assert done == list(range(done[-1] + 1))
    (begun, state) = re.findall(r"begins at (\d+) with (\w+)", node.stdout)[-1]
    assert f"has done {int(begun) - 1} with {state}\n" in node.stdout
    return int(begun)


@pytest.mark.long
def test_sharded_state_grows(ft: "Launcher", free_port: int) -> None:
    folder = ft.folder / "checkpoints"
    host, _ = grow(ft, free_port, *PRELOAD, ft.script(SCRIPT), "fsdp2", folder, 2)
    step = check_no_step_is_lost(host)
    assert os.listdir(folder).count(f"step-{step:08}") == 1
    words = "scaling up from 1 to 2 nodes"
    assert f"{words}: saving a snapshot on all ranks first (up to 60 s)" in host.stderr
    assert f"{words}, all ranks saved the snapshot of step {step}" in host.stderr


@pytest.mark.slow
def test_sharded_state_of_a_node_that_is_preempted(ft: "Launcher", free_port: int) -> None:
    """It has replicas, but they are of a world of another size."""
    folder = ft.folder / "checkpoints"
    more = ("--snapshot-replicas", 1, *PRELOAD, ft.script(SCRIPT), "fsdp2", folder, 1)
    host, guest = ft.start_two(*options(ft, free_port, 600, *more))
    host.expect("rank 0 of 2 has done 3")
    guest.send(signal.SIGTERM)
    assert [host.wait(), guest.wait()] == [0, 143], host.stderr
    step = check_no_step_is_lost(host)
    assert f"step-{step:08}" in os.listdir(folder)
    assert f"all ranks saved the snapshot of step {step}:" in guest.stderr


@pytest.mark.slow
def test_replicated_state_grows_without_a_checkpoint(ft: "Launcher", free_port: int) -> None:
    folder = ft.folder / "checkpoints"
    host, guest = grow(ft, free_port, *PRELOAD, ft.script(SCRIPT), "ddp", folder, 2)
    check_no_step_is_lost(host)
    assert not list(folder.glob("step-*"))
    assert "checkpoint of step" not in host.stderr + guest.stderr


ASKS = """
import os, threading
from ft_run.training import preempted
size = os.environ["WORLD_SIZE"]
assert not preempted()
os.write(1, f"rank 0 of {size} has done 3\\n".encode())
while size == "1":
    assert not preempted()
    threading.Event().wait(0.01)
"""


def test_a_script_that_saves_nothing_does_not_delay_a_larger_world(
    ft: "Launcher", free_port: int
) -> None:
    host, _ = grow(ft, free_port, ft.script(ASKS))
    assert re.search(r"regroup with 2 node\(s\): scaling up from 1 to 2 nodes$", host.stderr, re.M)
    assert "snapshot" not in host.stderr


WAITS = """
import os, sys, threading
import torch
from torch import nn
from ft_run.training import Checkpointer, checkpointer
drain = Checkpointer._drain

def drain_later(self, *arguments):
    os.write(1, b"drains\\n")
    while not os.path.exists(sys.argv[1] + "/go"):
        threading.Event().wait(0.01)
    drain(self, *arguments)

Checkpointer._drain = drain_later
kept = Checkpointer(sys.argv[1] + "/checkpoints", {"model": nn.Linear(1, 1)})
for number in kept.steps(100_000):
    os.write(1, f"rank 0 of 1 has done {number}\\n".encode())
    if os.path.exists(sys.argv[1] + "/end"):
        os._exit(0)
    threading.Event().wait(0.01)
"""


@pytest.mark.long
def test_training_continues_when_the_new_node_leaves(ft: "Launcher", free_port: int) -> None:
    job = options(ft, free_port, 0, ft.script(WAITS), ft.folder)
    host = ft.start(*job)
    host.expect("rank 0 of 1 has done 3")
    guest = ft.start(*job)
    host.expect("drains")
    guest.send(signal.SIGTERM)
    assert guest.wait() == 143
    host.expect("not scaling up: too few new nodes are left; training continues")
    (ft.folder / "go").touch()
    before = len(re.findall("has done", host.stdout))
    host.expect(rf"has done {before + 5}")
    (ft.folder / "end").touch()
    assert host.wait() == 0
    done = [int(step) for step in re.findall(r"has done (\d+)", host.stdout)]
    assert done == list(range(len(done)))
    assert "stopping" not in host.stderr
