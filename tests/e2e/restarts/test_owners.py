"""Several Checkpointers in one script: each resumes from its own snapshots, and from no others."""

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

SCRIPT = """
import json, os, signal, subprocess, sys
import torch
import torch.distributed as dist
from ft_run.training import Checkpointer
from torch import nn

kind, folder, dies = sys.argv[1:4]  # dies: NAME:STEP, once, on the last rank
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
is_sharded = kind.endswith("-fsdp2")
kind = kind.removesuffix("-fsdp2")
torch.set_num_threads(1)
if size > 1:
    dist.init_process_group("gloo")
os.makedirs(folder, exist_ok=True)
result, bodies = {}, []


def maybe_die(name, step):
    bodies.append(f"{name}:{step}")
    mark = f"{folder}/has-died"
    if rank != size - 1 or f"{name}:{step}" != dies or os.path.exists(mark):
        return
    open(mark, "w").close()
    if os.environ.get("PAUSES"):
        print("paused", os.getpid(), flush=True)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)


class Training:
    def __init__(self, name, seed, directory=None, **options):
        torch.manual_seed(seed)
        self.name, self.seed = name, seed
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        if is_sharded and size > 1:
            from torch.distributed.fsdp import fully_shard

            self.model = fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.state = {"model": self.model, "optimizer": self.optimizer}
        self.checkpointer = Checkpointer(
            f"{folder}/{directory or name}", self.state,
            **{"checkpoint_every": 100, "seed": 1, "position": "step", **options},
        )

    def body(self, step):
        maybe_die(self.name, step)
        torch.manual_seed(100 * self.seed + step)
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 8)).square().sum().backward()
        self.optimizer.step()

    def train(self, steps):
        for step in self.checkpointer.steps(steps):
            self.body(step)

    def end(self):
        values = [getattr(v, "full_tensor", lambda v=v: v)() for v in self.model.parameters()]
        result[self.name] = [value.detach().flatten().tolist() for value in values]


if kind == "phases":
    for name, seed, steps in (("first", 1, 6), ("second", 2, int(sys.argv[4]))):
        training = Training(name, seed)
        training.train(steps)
        training.end()
        maybe_die(f"after-{name}", 0)
elif kind == "folds":
    for fold in range(3):
        training = Training(f"fold{fold}", fold)
        training.train(4)
        maybe_die(f"evaluate{fold}", 0)
        torch.manual_seed(7)
        predictions = training.model(torch.randn(2, 8))
        result[f"predictions{fold}"] = predictions.flatten().tolist()
        training.end()
elif kind == "best":
    training = Training("main", 1)
    best = Checkpointer(f"{folder}/best", training.state, snapshot_every=None, keep=9)
    for step in training.checkpointer.steps(8):
        training.body(step)
        if step % 3 == 1:
            best.save(step + 1)
    training.end()
elif kind == "helper":
    training = Training("main", 1)
    for step in training.checkpointer.steps(8):
        if step == 3 and rank == 0:
            env = {**os.environ, "WORLD_SIZE": "1"}
            subprocess.run([sys.executable, "-c", HELPER, f"{folder}/main"], check=True, env=env)
        training.body(step)
    training.end()
elif kind == "loops":
    training = Training("main", 1, checkpoint_every=None)
    checkpointer = training.checkpointer
    done = checkpointer.restore()
    while done < 8:
        training.body(done)
        done += 1
        checkpointer.step(done)
        if done % 2 == 0:
            checkpointer.save(done)
            checkpointer.wait()
            if done == 6:  # another one may come between
                other = Training("other", 5)
                other.train(3)
    checkpointer.wait()
    training.end()
elif kind == "break":
    training = Training("main", 1)
    for step in training.checkpointer.steps(20):
        if step >= 4:
            break
        training.body(step)
    other = Training("other", 2)
    other.train(3)
    training.train(8)
    training.end()
    other.end()
if rank == 0:
    with open(f"{folder}/result.json", "w") as file:
        json.dump(result, file)
with open(f"{folder}/bodies-{rank}-{os.getpid()}", "w") as file:
    json.dump(bodies, file)
if size > 1:
    dist.barrier()
    dist.destroy_process_group()
"""
HELPER = """
import sys, torch
from ft_run.training import Checkpointer
model = torch.nn.Linear(2, 2)
state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
helper = Checkpointer(sys.argv[1], state, checkpoint_every=None)  # as in its parent
assert helper.restore() == 0
for step in range(9):
    helper.step(step + 1)
helper.wait()
"""


def outcome(folder: Any) -> tuple[Any, dict[str, list[str]]]:
    """Return the weights and predictions, and the checkpoints of each directory."""
    kept = {path.name: sorted(os.listdir(path)) for path in folder.iterdir() if path.is_dir()}
    return json.loads((folder / "result.json").read_text()), kept


def bodies(folder: Any) -> list[str]:
    """Return the bodies that rank 0 has run in its last process."""
    (path,) = folder.glob("bodies-0-*")
    found: list[str] = json.loads(path.read_text())
    return found


class Job:
    """A script, and its result without ft-run and without faults."""

    def __init__(self, ft: "Launcher", kind: str, *more: object) -> None:
        self.ft, self.kind, self.more = ft, kind, more
        self.script = ft.script(SCRIPT.replace("HELPER,", f"{HELPER!r},"), "train.py")
        self.folder = ft.folder / "job"
        alone = ft.folder / "alone"
        ran = ft.run(self.script, kind, alone, "never", *more, program=(sys.executable,))
        assert ran.process.returncode == 0, ran.stderr
        self.expected = outcome(alone)

    def start(self, dies: str, *options: object, **more: Any) -> "Command":
        return self.ft.start(
            *options, self.script, self.kind, self.folder, dies, *self.more, **more
        )

    def check(self, *nodes: "Command") -> None:
        """Check that a job has succeeded with the same result and checkpoints."""
        assert [node.wait() for node in nodes] == [0] * len(nodes), nodes[0].stderr
        assert outcome(self.folder) == self.expected


FORKED = ("--preload", "torch,torch._dynamo")
"""Importing them takes longer than the training of these scripts."""
ONE = ("--standalone", "--nproc-per-node", 2, *FORKED, "--max-restarts", 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "dies", "more", "first"),
    [
        ("phases", "after-first:0", (6,), "second:0"),
        pytest.param("phases", "second:3", (12,), "second:3", marks=pytest.mark.slow),
        pytest.param("phases", "second:1", (6,), "second:1", marks=pytest.mark.slow),
        ("phases-fsdp2", "second:3", (6,), "second:3"),
        pytest.param("folds", "evaluate1:0", (), "evaluate0:0", marks=pytest.mark.slow),
        pytest.param("best", "main:5", (), "main:5", marks=pytest.mark.slow),
        pytest.param("helper", "main:5", (), "main:5", marks=pytest.mark.slow),
        pytest.param("loops", "main:7", (), "main:7", marks=pytest.mark.slow),
        pytest.param("break", "main:6", (), "main:6", marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_changes_nothing(
    ft: "Launcher", kind: str, dies: str, more: tuple[object, ...], first: str
) -> None:
    job = Job(ft, kind, *more)
    job.check(job.start(dies, *ONE))
    ran = [body for body in bodies(job.folder) if not body.startswith("after")]
    name, step = first.split(":")
    # The last step may be repeated: its snapshot was being copied.
    assert ran[0] in (first, f"{name}:{max(0, int(step) - 1)}"), ran


@pytest.mark.long
def test_failed_job_saves_second_phase_with_smaller_step(ft: "Launcher") -> None:
    job = Job(ft, "phases", 4)
    failed = job.start("second:3", *ONE[:-1], 0)
    assert failed.wait() == 1
    failed.expect(r"checkpoint of step [23] saved: .*/second/")
    assert job.start("never", *ONE).wait() == 0
    result, kept = outcome(job.folder)
    assert result == job.expected[0]
    assert kept["first"] == ["latest", "step-00000006"]
    assert bodies(job.folder)[1] in ("second:2", "second:3")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["phases", "phases-fsdp2"])
@pytest.mark.parametrize("fault", ["worker", "node", "master"])
def test_two_nodes_resume_the_second_phase(
    ft: "Launcher", free_port: int, kind: str, fault: str
) -> None:
    job = Job(ft, kind, 6)
    endpoint = ("--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", ft.mark)
    nodes = ("--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 2, *endpoint)
    options = (*nodes, "--snapshot-replicas", 1)
    master = ("master", "--bind", f"127.0.0.1:{free_port}")
    hosted = ft.start(*master)
    hosted.expect("listening")
    both = [job.start("second:4", *options, env={"PAUSES": "1"}) for _ in range(2)]
    ft.wait_until(lambda: any("paused" in one.stdout for one in both), "a rank is paused")
    (last,) = (one for one in both if "paused" in one.stdout)
    pid = int(last.expect(r"paused (\d+)")[0][1])
    if fault == "node":
        spare = job.start("second:4", *options)
        spare.expect("standing by as a spare")
        last.send(signal.SIGKILL)
        last.wait()
        both = [*(one for one in both if one is not last), spare]
    elif fault == "master":
        hosted.send(signal.SIGKILL)
        hosted.wait()
        hosted = ft.start(*master)
        for one in both:
            one.expect("connected again|reconnected|is back")
        os.kill(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)
    job.check(*both)
    assert "first:0" not in bodies(job.folder)
    assert bodies(job.folder)[0] in ("after-first:0",)


@pytest.mark.slow
def test_directory_that_changes_with_each_restart_is_reported(ft: "Launcher") -> None:
    job = Job(ft, "best")
    changed = job.script.read_text().replace(
        'f"{folder}/{directory or name}"',
        "f\"{folder}/{name}-{os.environ['TORCHELASTIC_RESTART_COUNT']}\"",
    )
    script = ft.script(changed, "changing.py")
    command = ft.run(*ONE, script, "best", job.folder, "main:5")
    assert command.process.returncode == 0, command.stderr
    command.expect(
        rf"no snapshot for {job.folder}/main-1: the one in memory is for {job.folder}/main-0"
    )
