"""State that differs between ranks: corrupt on one of them, or unequal."""

import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from ft_run import exit_codes
from ft_run.tests.e2e.restarts.test_policy import start_nodes

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

PRELOAD = ("--preload", "torch,torch._dynamo,ft_run.training.checkpointer")
TRAINING = """
import hashlib
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def backward(model, optimizer, step):
    torch.manual_seed(step)
    optimizer.zero_grad()
    model(torch.randn(3, 8)).square().mean().backward()


def digest(model):
    values = [value.detach().numpy().tobytes() for value in model.parameters()]
    return hashlib.sha256(b"".join(values)).hexdigest()
"""
SCRIPT = f"""{TRAINING}
import os, sys, threading
import torch.distributed as dist
from ft_run.training import Checkpointer

folder, place, at, odd = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
times = int(sys.argv[5]) if len(sys.argv) > 5 else 1
rank = os.environ["RANK"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
model, optimizer = make()
state = {{"model": model, "optimizer": optimizer}}
checkpointer = Checkpointer(
    f"{{folder}}/checkpoints", state, verify_every=4, checkpoint_every=5, seed=1, position="step"
)
for step in checkpointer.steps(20):
    backward(model, optimizer, step)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    while step == at and not os.path.exists(f"{{folder}}/go"):
        threading.Event().wait(0.01)
    marks = [name for name in os.listdir(folder) if name.startswith("corrupted")]
    if step == at and rank == odd and len(marks) < times:
        open(f"{{folder}}/corrupted-{{len(marks)}}", "w").close()
        last = model[2].weight
        tensor = last.data if place == "weight" else optimizer.state[last]["exp_avg"]
        tensor.view(torch.int32)[1, 5] ^= 1 << 24
os.write(1, f"state {{rank}} {{digest(model)}}\\n".encode())
dist.destroy_process_group()
"""


def undisturbed(ranks: int) -> str:
    """Return the digest of the weights after the same steps in this process, without ft-run."""
    names: dict[str, Any] = {}
    exec(TRAINING, names)
    threads = names["torch"].get_num_threads()
    names["torch"].set_num_threads(1)
    model, optimizer = names["make"]()
    for step in range(20):
        names["backward"](model, optimizer, step)
        for parameter in model.parameters():
            parameter.grad *= ranks  # a power of two: as exact as their sum
        optimizer.step()
    names["torch"].set_num_threads(threads)
    found: str = names["digest"](model)
    return found


def digests(*commands: "Command") -> set[str]:
    """Return the digests of the weights with which the ranks have ended."""
    return {match for one in commands for match in re.findall(r"state \d (\w+)", one.stdout)}


def run(ft: "Launcher", ranks: int, name: str, *args: object, restarts: int = 2) -> "Command":
    folder = ft.folder / name
    folder.mkdir()
    (folder / "go").touch()
    job = ("--standalone", "--nproc-per-node", ranks, "--max-restarts", restarts)
    return ft.run(*job, *PRELOAD, ft.script(SCRIPT, f"{name}.py"), folder, *args)


@pytest.mark.long
@pytest.mark.parametrize("place", ["weight", pytest.param("moment", marks=pytest.mark.slow)])
def test_job_resumes_from_checkpoint_when_one_bit_flips(ft: "Launcher", place: str) -> None:
    """The rank, the node and the tensor are named, and no bit is different at the end."""
    step, odd = random.randrange(6, 15), random.randrange(4)
    print(f"{place} of rank {odd} at step {step}")
    corrupted = run(ft, 4, "corrupted", place, step, odd)
    assert corrupted.process.returncode == 0, corrupted.stderr
    assert digests(corrupted) == {undisturbed(4)}
    tensor = {"weight": "model.2.weight", "moment": "optimizer.state.2.weight.exp_avg"}[place]
    (line,) = corrupted.expect(r"restart 1/2: (rank \d on node 0 .*)")
    assert line[1].startswith(f"rank {odd} on node 0")
    assert re.search(rf"CorruptStateError: .*\b{re.escape(tensor)} of rank {odd} has", line[1])
    (resumed,) = corrupted.expect(r"resuming from the checkpoint of step (\d+)")
    assert int(resumed[1]) <= step  # the newest is older if the one before took long


@pytest.mark.slow
def test_node_with_corrupt_memory_is_replaced(ft: "Launcher", free_port: int) -> None:
    folder = ft.folder / "job"
    folder.mkdir()
    rule = (
        "--max-restarts",
        2,
        "--on-failure",
        "corrupt=replace-node",
        *PRELOAD,
        "--nproc-per-node",
        2,
    )
    script = ft.script(SCRIPT, "train.py")
    nodes = start_nodes(ft, free_port, 3, *rule, script, folder, "moment", 12, 2)
    (folder / "go").touch()
    codes = [node.wait() for node in nodes]
    assert sorted(codes) == [0, 0, exit_codes.NODE_EXCLUDED]
    assert codes[0] == 0
    assert digests(*nodes) == {undisturbed(4)}
    nodes[0].expect("rule corrupt=replace-node")


@pytest.mark.slow
def test_second_corruption_on_one_node_ends_the_job(ft: "Launcher") -> None:
    command = run(ft, 4, "job", "weight", 7, 1, 9, restarts=5)
    assert command.process.returncode == exit_codes.POLICY_ENDED_JOB
    assert "default rule corrupt twice on one node=fail; 1 of 5 restarts used" in command.stderr
    assert not [
        path for path in (ft.folder / "job/checkpoints").glob("step-*") if path.name > "step-5"
    ]


def test_unequal_state_ends_the_job_without_restarts(ft: "Launcher") -> None:
    """Of two ranks neither is known to be right; nothing is saved at the end."""
    command = run(ft, 2, "job", "weight", 2, 1)
    assert command.process.returncode == exit_codes.POLICY_ENDED_JOB
    assert "default rule unequal state=fail; 0 of 2 restarts used" in command.stderr
    assert "the weights of 'model' differ between ranks 0 and 1 (2.weight)" in command.stderr
    assert not [*(ft.folder / "job/checkpoints").glob("step-*")]
