"""Optimizers come back whole, on two ranks: the bits are those of training without a kill."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

SCRIPT = """
import hashlib, os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from ft_run.training import Checkpointer

kind, wrapper, folder, kill = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 1)])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers
    def forward(self, x, uses_expert):
        x = self.layers[0](x).tanh()
        return self.layers[2](self.layers[1](x) if uses_expert else x)

net = Net()
if wrapper == "fsdp2":
    for layer in layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
elif wrapper == "ddp":
    net = DistributedDataParallel(net, find_unused_parameters=True)
parameters = [*net.parameters()]
if kind == "gan":
    optimizers = [
        torch.optim.Adam(layers[:2].parameters(), lr=0.01),
        torch.optim.Adam(layers[2:].parameters(), lr=0.01),
    ]
else:
    optimizers = [torch.optim.Adam(parameters, lr=0.01)]
if kind == "unfreezing":
    layers[0].requires_grad_(False)
state = {"net": net, **{f"optimizer{i}": one for i, one in enumerate(optimizers)}}
options = {"checkpoint_every": 100, "seed": 1, "position": "step"}
checkpointer = Checkpointer(f"{folder}/checkpoints", state, **options)

def digest():
    values = [*net.state_dict().values()]
    for one in optimizers:
        for p in (p for group in one.param_groups for p in group["params"]):
            values += one.state[p].values() if p in one.state else []
    values = [getattr(v, "full_tensor", lambda v=v: v)().detach().numpy().tobytes() for v in values]
    return len(values), hashlib.sha256(b"".join(values)).hexdigest()

for step in checkpointer.steps(12):
    if wrapper == "none":
        torch.manual_seed(step)  # nothing reduces the gradients: the same batch on all ranks
    if kind == "unfreezing":
        layers[0].requires_grad_(step >= 4)
    if kind == "gan":
        for number, part in enumerate((layers[:2], layers[2:])):
            part.requires_grad_(step % 2 == number)
    if kind != "accumulation":
        for one in optimizers:
            one.zero_grad()
    net(torch.randn(5, 4), kind != "expert" or step >= 8).square().mean().backward()
    if kind == "gan":
        optimizers[step % 2].step()
    elif kind != "accumulation" or step % 4 == 3:
        optimizers[0].step()
        if kind == "accumulation":
            optimizers[0].zero_grad()
    if step == kill and rank == 1 and not Path(folder, "killed").exists():
        Path(folder, "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
found = digest()
if rank == 0:
    print(*found, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "wrapper", "kill"),
    [
        pytest.param("unfreezing", "ddp", 8, marks=pytest.mark.slow),
        pytest.param("unfreezing", "fsdp2", 8, marks=pytest.mark.slow),
        ("expert", "fsdp2", 4),
        pytest.param("gan", "none", 7, marks=pytest.mark.slow),
        pytest.param("accumulation", "none", 6, marks=pytest.mark.slow),
    ],
)
def test_optimizer_resumes_with_the_same_bits(
    ft: "Launcher", kind: str, wrapper: str, kill: int
) -> None:
    script = ft.script(SCRIPT)
    # Importing them takes longer than the training.
    common = ("--standalone", "--nproc-per-node", 2, "--preload", "torch,torch._dynamo")

    def trained(folder: str, kill: int, *arguments: object) -> tuple[int, str, str]:
        (ft.folder / folder).mkdir(exist_ok=True)
        command = ft.run(*common, *arguments, script, kind, wrapper, ft.folder / folder, kill)
        return command.wait(), command.stdout, command.stderr

    code, expected, errors = trained("undisturbed", -1)
    assert code == 0, errors
    code, found, errors = trained("worker", kill, "--max-restarts", 1)
    assert code == 0, errors
    assert "resuming from the snapshot" in errors
    assert found == expected
    assert trained("job", kill)[0] == 1
    code, found, errors = trained("job", kill)
    assert code == 0, errors
    assert "resuming from the checkpoint" in errors
    assert found == expected
