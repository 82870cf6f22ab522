"""Accelerators that run out of memory: the same samples in smaller parts, or a failure."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ft_run.training import ElasticBatches
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

# Runs out of memory at a step where a part has more samples than fit then.
SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

folder, fits = sys.argv[1], json.loads(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 3, dtype=torch.float64)
dataset = TensorDataset(torch.arange(96), x)
model = DistributedDataParallel(nn.Linear(3, 1).double())
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
data = ElasticBatches(dataset, 32, seed=5)
loader = DataLoader(dataset, batch_sampler=data)
state = {"model": model, "optimizer": optimizer, "data": data}
checkpointer = Checkpointer(f"{folder}/checkpoints", state, checkpoint_every=None)
log = open(f"{folder}/log-{os.getpid()}", "a", buffering=1)
for step in checkpointer.steps(data, epochs=3):
    seen = []
    for part in data.parts(loader, step):
        with part.sync(model):
            index, x = part.batch
            if rank == 1 and part.samples > fits.get(str(step), 99):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
            (loss * part.weight).backward()
        seen.append(index.tolist())
    optimizer.step()
    optimizer.zero_grad()
    log.write(json.dumps([step, rank, seen]) + "\\n")
if rank == 0:
    expected = [data.samples(step).tolist() for step in range(9)]
    values = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    json.dump([expected, values], open(f"{folder}/result", "w"))
dist.destroy_process_group()
"""
PRELOAD = "torch,torch._dynamo,ft_run.training.checkpointer"
RULE = ("--on-failure", "device-oom=shrink")


def start_alone(ft: "Launcher", code: str, folder: Path, *options: object) -> "Command":
    folder.mkdir(exist_ok=True)
    return ft.start(
        *("--standalone", "--nproc-per-node", 2, "--preload", PRELOAD, *RULE, *options[:-1]),
        *(ft.script(code, "train.py"), folder, options[-1]),
    )


def parts_of(folder: Path) -> list[int]:
    """Check the samples of all steps; return by step the size of the largest part."""
    expected, _ = json.loads((folder / "result").read_text())
    made: dict[int, dict[int, list[list[int]]]] = {}
    for path in folder.glob("log-*"):
        for line in path.read_text().splitlines():
            step, rank, parts = json.loads(line)
            made.setdefault(step, {})[rank] = parts
    for step, of_ranks in made.items():
        flat = [one for rank in (0, 1) for part in of_ranks[rank] for one in part]
        assert flat == expected[step]
    assert sorted(made) == list(range(len(expected)))
    return [max(len(part) for parts in made[step].values() for part in parts) for step in made]


def weights_of(folder: Path) -> list[float]:
    return list(json.loads((folder / "result").read_text())[1])


def test_a_job_goes_on_with_the_same_samples_in_smaller_parts(ft: "Launcher") -> None:
    folder = ft.folder / "job"
    node = start_alone(ft, SCRIPT, folder, json.dumps({2: 8, 5: 4, 6: 4}))
    assert node.wait() == 0, node.stderr
    assert len(re.findall(r"restart \(not counted, 0/0 used\): rank 1 ", node.stderr)) == 2
    shrunk = re.findall(r"micro_batch (\S+ -> \S+) on all ranks", node.stderr)
    assert shrunk == ["16 -> 8", "8 -> 4"]
    assert node.stderr.count("BatchNorm, dropout and losses") == 1
    assert sorted(parts_of(folder)) == [4] * 4 + [8] * 3 + [16] * 2
    expected = weights_in_parts_of(4)
    assert max(abs(a - b) for a, b in zip(weights_of(folder), expected, strict=True)) < 1e-12


def weights_in_parts_of(micro_batch: int) -> list[float]:
    """Return what one process learns in small parts from the start."""
    torch.manual_seed(0)
    x = torch.randn(96, 3, dtype=torch.float64)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    dataset = TensorDataset(x)
    data = ElasticBatches(dataset, 32, micro_batch=micro_batch, seed=5)
    loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=data)
    for step in range(data.total(3)):
        for part in data.parts(loader, step):
            (x,) = part.batch
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
            (loss * part.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [float(one) for p in model.parameters() for one in p.detach().flatten()]


@pytest.mark.slow
def test_the_next_start_begins_with_what_fitted(ft: "Launcher") -> None:
    file, fits = ft.folder / "tuned.json", json.dumps({3: 8})
    options = ("--tune-file", file, fits)
    first = start_alone(ft, SCRIPT, ft.folder / "first", *options)
    assert first.wait() == 0, first.stderr
    assert re.findall(r"micro_batch (\S+ -> \S+) on", first.stderr) == ["16 -> 8"]
    found = json.loads(file.read_text())
    assert (found["values"]["micro_batch"], found["values"]["preload"]) == (8, [])
    other = start_alone(ft, SCRIPT, ft.folder / "first", *options)  # resumes, as the same job
    assert other.wait() == 0, other.stderr
    assert "micro_batch 8 on all ranks" in other.stderr
    other = start_alone(ft, SCRIPT, ft.folder / "other", *options)  # an argument differs
    assert other.wait() == 0, other.stderr
    assert re.findall(r"tuned.json is ignored: it is .* for: (.*)", other.stderr) == ["arguments"]
    assert re.findall(r"micro_batch (\S+ -> \S+) on", other.stderr) == ["16 -> 8"]


@pytest.mark.slow
def test_parts_of_one_sample_cannot_shrink(ft: "Launcher") -> None:
    code = SCRIPT.replace("ElasticBatches(dataset, 32,", "ElasticBatches(dataset, 4,")
    command = start_alone(ft, code, ft.folder / "job", json.dumps({3: 0}))
    assert command.wait() == 3
    assert "micro_batch is 1 and cannot be halved" in command.stderr
    assert re.findall(r"micro_batch (\S+ -> \S+) on", command.stderr) == ["2 -> 1"]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("memory_limit", [1024], indirect=True)
def test_memory_of_the_host_is_no_reason_for_smaller_parts(
    ft: "Launcher", memory_limit: tuple[str, ...]
) -> None:
    takes_all = """
            if rank == 1 and step == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                hoard = []
                while True:
                    hoard.append(bytearray(os.urandom(1 << 20)))
"""
    first, raised, rest = SCRIPT.partition("            if rank == 1 and part.samples")
    code = f"{first}{takes_all.lstrip(chr(10))}{raised}{rest}"
    folder = ft.folder / "job"
    folder.mkdir()
    job = ft.run(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, *RULE),
        *(ft.script(code, "train.py"), folder, "{}"),
        program=(*memory_limit, *ft.program),
    )
    assert job.process.returncode == 0, job.stderr
    (line,) = re.findall(r"restart 1/1: (.*)", job.stderr)
    assert "rank 1 on node 0" in line
    assert "killed by the kernel's OOM killer" in line
    assert "micro_batch" not in job.stderr
    assert set(parts_of(folder)) == {16}


ELSEWHERE = """
import os, sys
import torch
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fail(place):
    if places[int(os.environ["TORCHELASTIC_RESTART_COUNT"])] == place:
        raise torch.OutOfMemoryError(f"CUDA out of memory ({place})")


class Model(nn.Linear):
    def state_dict(self, *arguments, **named):
        fail("snapshot")
        return super().state_dict(*arguments, **named)


places = ["model", "optimizer", "evaluation", "snapshot", "survived", "none"]
x = torch.randn(8, 3)
fail("model")
model = Model(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.register_step_pre_hook(lambda *_: fail("optimizer"))
dataset = TensorDataset(x)
data = ElasticBatches(dataset, 4)
loader = DataLoader(dataset, batch_sampler=data)
evaluation = ElasticBatches(dataset, 4, shuffle=False)
checkpointer = Checkpointer(sys.argv[1], {"model": model, "data": data}, checkpoint_every=None)
for step in checkpointer.steps(data, epochs=1):
    for part in data.parts(loader, step):
        try:
            with part.sync(model):
                (model(part.batch[0]).sum() * part.weight).backward()
                fail("survived")
        except torch.OutOfMemoryError:
            pass
    optimizer.step()
    fail("survived")
    model.eval()
    for part in evaluation.parts(DataLoader(dataset, batch_sampler=evaluation), step):
        with part.sync(model):
            fail("evaluation")
    model.train()
"""


@pytest.mark.slow
def test_elsewhere_it_is_a_failure_like_others(ft: "Launcher") -> None:
    command = ft.start(
        *("--standalone", "--max-restarts", 5, "--preload", PRELOAD, *RULE),
        *(ft.script(ELSEWHERE, "train.py"), ft.folder / "checkpoints"),
    )
    assert command.wait() == 0, command.stderr
    restarts = re.findall(r"restart (\d)/5: .*", command.stderr)
    assert restarts == ["1", "2", "3", "4", "5"]
    why = "device-oom=shrink does not apply: memory ran out outside the parts of ElasticBatches"
    assert command.stderr.count(why) == 5
    assert "micro_batch" not in command.stderr
