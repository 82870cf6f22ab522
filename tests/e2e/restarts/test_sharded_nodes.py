"""State that is sharded over several nodes: their savers write one checkpoint together."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.restarts.test_sharded_snapshots import PRELOAD, SCRIPT

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

# Prints the digest of checkpoints, which it loads without ft-run, into a model as a whole.
LOAD = """
import hashlib, sys, warnings
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
warnings.simplefilter("ignore")
model = nn.Sequential(nn.Linear(200, 257), nn.Tanh(), nn.Linear(257, 3), nn.BatchNorm1d(3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
names = [name for name, _ in model.named_parameters()]
for parameter in model.parameters():
    optimizer.state[parameter] = {
        "step": torch.tensor(0.0),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
kept = [optimizer.state[parameter] for parameter in model.parameters()]
state = {"model": model.state_dict(), "optimizer": {"state": dict(zip(names, kept))}}
for path in sys.argv[1:]:
    dcp.load(state, checkpoint_id=path, no_dist=True)
    values = list(state["model"].values())
    for one in kept:
        values += one.values()
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in values)).hexdigest())
"""


def start(
    ft: "Launcher", port: int, *options: object, steps: int = 100_000, every: int = 10
) -> tuple["Command", "Command"]:
    """Start two nodes of two ranks, and a checkpoint after some steps."""
    nodes = ("--nnodes", 2, "--nproc-per-node", 2, "--rdzv-endpoint", f"127.0.0.1:{port}")
    script = ft.script(SCRIPT, "train.py")
    more = ("--rdzv-id", ft.mark, *PRELOAD, *options, script, "fsdp2", ft.folder, steps, every)
    host = ft.start(*nodes, *more, env={"LOGLEVEL": "DEBUG"})
    host.expect("hosted here")
    return host, ft.start(*nodes, *more, env={"LOGLEVEL": "DEBUG"})


def kept(ft: "Launcher") -> list[Path]:
    """Return the checkpoints, all that is there; none has more than the files of four ranks."""
    folder = ft.folder / "checkpoints"
    paths = sorted(folder.glob("step-*"))
    files = {".metadata", *(f"__{rank}_0.distcp" for rank in range(4))}
    assert all(set(os.listdir(path)) == files for path in paths)
    return paths


def load(ft: "Launcher", *paths: Path) -> list[str]:
    """Return the digests of checkpoints."""
    import sys

    done = ft.run(ft.script(LOAD, "load.py"), *paths, program=(sys.executable,))
    assert done.process.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.long
def test_savers_of_two_nodes_write_one_checkpoint(ft: "Launcher", free_port: int) -> None:
    host, guest = start(ft, free_port, steps=30)
    assert [host.wait(), guest.wait()] == [0, 0], host.stderr + guest.stderr
    paths = kept(ft)
    assert sorted(os.listdir(ft.folder / "checkpoints")) == ["latest", *(p.name for p in paths)]
    for path in paths:
        step = int(path.name.removeprefix("step-"))
        host.expect(f"The checkpoint of step {step} is complete")  # so says the saver
    assert paths[-1].name == "step-00000030"
    assert "checkpoint of step" not in guest.stderr
    (last,) = {m[1] for m in host.expect(r"at 30 has (\w+)", 2)}
    assert load(ft, paths[-1]) == [last]
