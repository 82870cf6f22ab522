"""State that is sharded over several nodes: their savers write one checkpoint together."""

import os
import random
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.launcher.saver.coordination import PEER_TIMEOUT_S
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
    ft: "Launcher",
    port: int,
    *options: object,
    steps: int = 100_000,
    every: int = 10,
    env: Mapping[str, str] | None = None,
) -> tuple["Command", "Command"]:
    """Start two nodes of two ranks, and a checkpoint after some steps."""
    nodes = ("--nnodes", 2, "--nproc-per-node", 2, "--rdzv-endpoint", f"127.0.0.1:{port}")
    script = ft.script(SCRIPT, "train.py")
    more = ("--rdzv-id", ft.mark, *PRELOAD, *options, script, "fsdp2", ft.folder, steps, every)
    env = {"LOGLEVEL": "DEBUG", **(env or {})}
    host = ft.start(*nodes, *more, env=env)
    host.expect("hosted here")
    return host, ft.start(*nodes, *more, env=env)


def kept(ft: "Launcher") -> list[Path]:
    """Return the checkpoints, all that is there; none has more than the files of four ranks."""
    folder = ft.folder / "checkpoints"
    paths = sorted(folder.glob("step-*"))
    files = {".ft_run", ".metadata", *(f"__{rank}_0.distcp" for rank in range(4))}
    assert all(set(os.listdir(path)) == files for path in paths)
    return paths


def load(ft: "Launcher", *paths: Path) -> list[str]:
    """Return the digests of checkpoints."""
    done = ft.run(ft.script(LOAD, "load.py"), *paths, program=(sys.executable,))
    assert done.process.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_savers_of_two_nodes_write_one_checkpoint(ft: "Launcher", free_port: int) -> None:
    """Training does not wait for it, and each checkpoint is the state of its step."""
    host, guest = start(ft, free_port, steps=30)
    assert [host.wait(), guest.wait()] == [0, 0], host.stderr + guest.stderr
    paths = kept(ft)
    assert sorted(os.listdir(ft.folder / "checkpoints")) == ["latest", *(p.name for p in paths)]
    for path in paths:
        step = int(path.name.removeprefix("step-"))
        host.expect(f"checkpoint of step {step} saved")  # so says the saver
    assert paths[-1].name == "step-00000030"
    assert "checkpoint of step" not in guest.stderr
    check(ft, host)


def said(step: int, *nodes: "Command") -> list[str]:
    """Return what the state of a step is, as the ranks say."""
    return [*{m[1] for node in nodes for m in node.expect(rf"of 4 at {step} has (\w+)", 2)}]


def check(ft: "Launcher", *nodes: "Command") -> None:
    """Look whether each checkpoint is the state of its step, as the ranks have said."""
    paths = kept(ft)
    states = [said(int(path.name.removeprefix("step-")), *nodes) for path in paths]
    assert [[state] for state in load(ft, *paths)] == states


@pytest.mark.slow
def test_what_a_failed_job_of_two_nodes_leaves_is_a_checkpoint(
    ft: "Launcher", free_port: int
) -> None:
    host, guest = start(ft, free_port, env={"ALL": "1"})
    found = guest.expect(r"life 0 of rank \d of 4 is (\d+)", 2)
    host.expect(r"checkpoint of step \d+ saved")  # so says the saver
    os.kill(int(found[0][1]), signal.SIGKILL)
    assert [host.wait(), guest.wait()] == [1, 1]
    step = int(host.expect(r"checkpoint of step (\d+) saved")[-1][1])
    assert step >= max(int(m[1]) for m in guest.expect(r"at (\d+) has")) - 2
    paths = kept(ft)
    assert paths[-1].name == f"step-{step:08}"
    assert sorted(os.listdir(ft.folder / "checkpoints")) == ["latest", *(p.name for p in paths)]
    check(ft, host, guest)
    assert "checkpoint of step" not in guest.stderr


@pytest.mark.slow
def test_what_a_lost_node_had_is_saved_from_replicas(ft: "Launcher", free_port: int) -> None:
    more = ("--snapshot-replicas", 1, "--max-restarts", 0)
    host, guest = start(ft, free_port, *more, every=16, env={"ALL": "1"})
    host.expect(r"checkpoint of step \d+ saved")
    guest.expect("rank 2 of 4 at 40 has")
    guest.send(signal.SIGKILL)
    guest.wait()
    assert host.wait() == 1
    step = int(host.expect(r"checkpoint of step (\d+) saved")[-1][1])
    assert step >= 38
    assert kept(ft)[-1].name == f"step-{step:08}"
    check(ft, host)
    assert "not saved" not in host.stderr + guest.stderr


@pytest.mark.slow
def test_savers_that_are_killed_on_both_nodes(ft: "Launcher", free_port: int) -> None:
    host, guest = start(ft, free_port, every=3, env={"ALL": "1"})
    pattern = r"checkpoint of step (\d+) saved"
    for _ in range(20):
        host.expect(pattern)
        savers = [pid for pid, words in ft.processes().items() if "saver.process" in words]
        for pid in savers[: random.randint(1, 2)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        threading.Event().wait(random.random() * 0.4)
    # Where two savers of a node were killed in a row the other one knows nothing, and waits.
    host.expect(pattern, len(host.expect(pattern)) + 2, 60 + PEER_TIMEOUT_S)
    for node in (guest, host):  # all will be gone: what is in memory is on storage before
        node.send(signal.SIGTERM)
    assert [host.wait(), guest.wait()] == [128 + signal.SIGTERM] * 2
    newest = int(kept(ft)[-1].name.removeprefix("step-"))
    steps = [int(match[1]) for match in guest.expect(r"rank 2 of 4 at (\d+) has")]
    assert newest == max(steps)
    check(ft, host, guest)
    assert f"{newest:08}" in (ft.folder / "checkpoints/latest").read_text()
    assert sorted(os.listdir(ft.folder / "checkpoints")) == [
        "latest",
        *(path.name for path in kept(ft)),
    ]
