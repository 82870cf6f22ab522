"""A host without power takes no state with it: its shares are on another one."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher
    from ft_run.tests.harness.hosts import Network

SCRIPT = """
import hashlib, os, sys, threading
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from ft_run.training import Checkpointer

folder, total = sys.argv[1], int(sys.argv[2])
rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
state = {"model": model, "optimizer": optimizer}
checkpointer = Checkpointer(f"{folder}/checkpoints", state, checkpoint_every=None)
for number in checkpointer.steps(total):
    torch.manual_seed(number * 2 + int(rank))
    optimizer.zero_grad()
    model(torch.randn(3, 64)).square().sum().backward()
    optimizer.step()
    threading.Event().wait(0.2)  # a step takes longer than the network
    os.write(1, f"life {life} rank {rank} step {number}\\n".encode())
values = [value.full_tensor() for value in model.parameters()]
digest = hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in values)).hexdigest()
os.write(1, f"state of rank {rank}: {digest}\\n".encode())
dist.destroy_process_group()
"""


def digests(*nodes: "Command") -> set[str]:
    """Return what the ranks ended with."""
    assert [node.wait() for node in nodes] == [0] * len(nodes), nodes[0].stderr
    return {
        match for node in nodes for match in re.findall(r"state of rank \d: (\w+)", node.stdout)
    }


def steps(node: "Command", life: int) -> list[int]:
    """Return the steps that a node's rank has done in a life."""
    return [int(step) for step in re.findall(rf"life {life} rank \d step (\d+)", node.stdout)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", [1, 2])
def test_no_state_is_lost_with_hosts(ft: "Launcher", network: "Network", lost: int) -> None:
    """With as many replicas, and spares in their place: one step at most is done again."""
    script, total = ft.script(SCRIPT, "train.py"), 60
    alone = ft.start("--standalone", "--nproc-per-node", lost + 1, script, ft.folder / "o", total)
    undisturbed = digests(alone)
    assert len(undisturbed) == 1
    names = "abcde"[: 2 * lost + 1]
    members, spares = names[: lost + 1], names[lost + 1 :]
    hosts = {name: network.add(name) for name in names}
    job = ("--nnodes", len(members), "--rdzv-endpoint", "a:29400", "--rdzv-id", ft.mark)
    folder: Path = ft.folder / "job"
    more = ("--max-restarts", 3, "--snapshot-replicas", lost, script, folder, total)
    nodes = {name: ft.start(*job, *more, host=hosts[name]) for name in members}
    nodes["b"].expect(r"life 0 rank \d step 0")
    for name in spares:
        nodes[name] = ft.start(*job, *more, host=hosts[name])
        nodes[name].expect("standing by as a spare")
    nodes["b"].expect(r"life 0 rank \d step 1\d")
    for name in members[1:]:
        hosts[name].cut()
    for name in members[1:]:
        hosts[name].kill()
        nodes[name].wait()
    assert digests(nodes["a"], *(nodes[name] for name in spares)) == undisturbed
    last = max(life for life in range(4) if steps(nodes["a"], life))
    done, again = max(steps(nodes["a"], 0)), min(steps(nodes["a"], last))
    print(json.dumps({"done": done, "resumed_at": again, "lost": done + 1 - again}))
    assert {min(steps(nodes[name], last)) for name in spares} == {again}
    assert done + 1 - again <= 1
    assert not (folder / "checkpoints").exists()  # it came from memory
