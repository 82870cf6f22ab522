"""Block 3: NCCL with what one GPU allows: a group of one, and two ranks on one GPU.

NCCL refuses two ranks on one GPU ("Duplicate GPU detected") before 2.30.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ft_run.launcher.processes.worker_watch import WorkerWatch, starter_env
from ft_run.launcher.stacks.control_plane import ControlPlane
from ft_run.launcher.stacks.flight_recorder import FlightRecorders, record_collectives
from ft_run.launcher.stacks.recorded import merged, read, summary
from ft_run.tests.gpu.machine import FT_RUN, Tell, in_torch, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


NCCL_VERSION = """
import ctypes, torch
version = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
print(version.value)
"""
"""Of the loaded library. ``torch.cuda.nccl.version`` is the one that torch was built with."""


@pytest.fixture(scope="module")
def several_per_gpu() -> dict[str, str]:
    """The variables with which NCCL lets several ranks use one GPU."""
    version = int(in_torch(NCCL_VERSION))
    if version < 23_000:
        pytest.skip(f"NCCL {version}: two ranks on one GPU need 23000 (2.30)")
    return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


ALONE = """
import os, sys, time, torch, torch.distributed as dist
began = time.perf_counter()
device = torch.device("cuda", 0)
torch.ones(1, device=device)
context_s = time.perf_counter() - began
began = time.perf_counter()
store = dist.HashStore()
dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
tensor = torch.arange(1 << 24, dtype=torch.float32, device=device)
expected = tensor.clone()
for _ in range(3):
    dist.all_reduce(tensor)
dist.broadcast(tensor, 0)
torch.cuda.synchronize()
nccl_s = time.perf_counter() - began
print(f"NCCL {torch.cuda.nccl.version()}: context {context_s:.2f} s, first collectives"
      f" {nccl_s:.2f} s, same={torch.equal(tensor, expected)}", flush=True)
for line in sys.stdin:
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    print("once more", flush=True)
"""


def test_a_group_of_one_and_its_flight_recorder(record_property: Tell) -> None:
    """The dump is requested as for a verdict, twice, and read by ft-run's own reader."""
    environ = {**os.environ, "TORCH_DIST_USE_NCCL2": "0"}  # the backend that reads the pipe
    record_collectives(environ)
    recorders = FlightRecorders(environ)
    with subprocess.Popen(
        (sys.executable, "-c", ALONE),
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        said = worker.stdout.readline()
        entered: list[tuple[int, int]] = []
        for more in ("1\n", ""):
            asked_at = time.monotonic()
            found = recorders.ask([0])
            while found and not recorders.written and time.monotonic() - asked_at < 10:
                time.sleep(0.1)
                recorders.look()
            took_s = time.monotonic() - asked_at
            assert recorders.written == (0,), f"no dump, or not in time, after {entered}"
            collectives = summary(read(f"{recorders.files}0"))
            record_property("gpu", f"flight recorder, after {took_s:.1f} s: {collectives}")
            entered += [(group.entered, group.pending) for group in collectives.groups]
            if more:
                worker.stdin.write(more)
                worker.stdin.flush()
                worker.stdout.readline()
        worker.stdin.close()
    record_property("gpu", said.strip())
    assert "same=True" in said
    assert entered == [(4, 0), (5, 0)]


NAMES_OF_C10D = "import torch.distributed.distributed_c10d as c10d; print(dir(c10d))"


def test_dump_of_the_server_of_torch_2_15(record_property: Tell) -> None:
    """The worker is hooked as by ft-run, and asked as for a verdict."""
    if "_maybe_attach_flight_recorder" not in in_torch(NAMES_OF_C10D):
        pytest.skip("the backend nccl2 is the default since torch 2.15")
    environ = dict(os.environ)
    record_collectives(environ)
    watch = WorkerWatch()
    environ |= starter_env(environ, watch.fds)

    async def dumps(pid: int) -> Mapping[str, Any]:
        plane = ControlPlane(environ)
        file = f"{FlightRecorders(environ).files}0"
        assert plane.ask(0, pid, watch.backends(), file), "no server"
        await asyncio.wait(plane._asked.values())
        return plane.finished()[0]

    command, pipe = (sys.executable, "-c", ALONE), subprocess.PIPE
    with subprocess.Popen(
        command, env=environ, stdin=pipe, stdout=pipe, text=True, pass_fds=watch.fds
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        said = worker.stdout.readline()
        assert watch.backends() == ("nccl2",)
        found = merged(asyncio.run(dumps(worker.pid)), watch.backends())
        record_property("gpu", f"recorder of nccl2: {found}")
        worker.stdin.close()
    watch.close()
    assert "same=True" in said
    assert [(group.entered, group.pending) for group in found.groups] == [(4, 0)]
    assert not found.unseen


TOGETHER = """
import os, torch, torch.distributed as dist
rank, device = int(os.environ["RANK"]), torch.device("cuda", 0)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
parameter = torch.nn.Parameter(torch.zeros(1 << 20, device=device))
optimizer = torch.optim.SGD([parameter], lr=1.0)
for step in range(4):
    if step == 3 and rank == 1 and "FIFO" in os.environ:
        open(os.environ["FIFO"]).read()  # hangs
    parameter.grad = torch.full_like(parameter, rank + 1)
    dist.all_reduce(parameter.grad)
    optimizer.step()
torch.cuda.synchronize()
print(f"rank {rank}: {parameter[0].item()}", flush=True)
dist.destroy_process_group()
"""


def test_two_ranks_on_one_gpu(
    tmp_path: Path, several_per_gpu: dict[str, str], record_property: Tell
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TOGETHER)
    done = run(*FT_RUN, "--nproc-per-node", "2", str(script), **several_per_gpu)
    record_property("gpu", f"two ranks on one GPU: status {done.returncode}, {done.stdout.split()}")
    assert done.returncode == 0, done.stderr
    ranks = re.findall(r"rank .*", done.stdout)  # NCCL may print its version
    assert sorted(ranks) == ["rank 0: -12.0", "rank 1: -12.0"]


def test_a_hang_of_nccl_names_the_rank_that_is_missing(
    tmp_path: Path, several_per_gpu: dict[str, str], record_property: Tell
) -> None:
    script, fifo = tmp_path / "train.py", tmp_path / "fifo"
    script.write_text(TOGETHER)
    os.mkfifo(fifo)
    options = ("--nproc-per-node", "2", "--hang-timeout", "5")
    done = run(*FT_RUN, *options, str(script), FIFO=str(fifo), **several_per_gpu)
    causes = re.findall(r"^Root cause: (.*)", done.stderr, re.MULTILINE)
    record_property("gpu", f"rank 1 does not enter an all_reduce: {causes}")
    assert done.returncode == 1, done.stderr
    assert causes, done.stderr
    assert causes[0].startswith("rank 1 ")


EXACT = """
import hashlib, os, signal, torch, torch.distributed as dist
from ft_run.training import Checkpointer, ElasticBatches
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
rank, device = int(os.environ["RANK"]), torch.device("cuda", 0)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
layers = (
    torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Dropout(0.1), torch.nn.GELU())
    for _ in range(4)
)
model = torch.nn.Sequential(*layers).to(device)
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = ElasticBatches(range(256), global_batch=16, micro_batch=4, seed=1)
inputs = torch.randn(256, 2048, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(inputs), batch_sampler=data)
state = {"model": model, "optimizer": optimizer, "data": data}
checkpointer = Checkpointer(os.environ["FOLDER"], state, checkpoint_every=None, seed=1)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
for step in checkpointer.steps(data, epochs=1):
    for part in data.parts(loader, step):
        with part.sync(model):
            (model(part.batch[0].to(device)).pow(2).mean() * part.weight).backward()
    optimizer.step()
    optimizer.zero_grad()
    if attempt == "1" and rank == 0:
        print(f"step {step}")
    if step == 7 and attempt == "0" and rank == 1 and os.environ["KILLED"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.full_tensor().detach().cpu().numpy().tobytes())
if rank == 0:
    print(f"digest {digest.hexdigest()}")
dist.destroy_process_group()
"""


def test_sharded_training_over_nccl_resumes_with_the_same_bits(
    tmp_path: Path, several_per_gpu: dict[str, str], record_property: Tell
) -> None:
    script = tmp_path / "train.py"
    script.write_text(EXACT)
    options = ("--nproc-per-node", "2", "--max-restarts", "1")
    whole, killed = (
        run(
            *(*FT_RUN, *options, str(script)),
            FOLDER=str(tmp_path / f"checkpoints{is_killed}"),
            KILLED=is_killed,
            CUBLAS_WORKSPACE_CONFIG=":4096:8",
            **several_per_gpu,
        )
        for is_killed in "01"
    )
    assert whole.returncode == killed.returncode == 0, whole.stderr + killed.stderr
    steps = re.findall(r"step \d+", killed.stdout)
    digests = re.findall(r"digest (\w+)", whole.stdout + killed.stdout)
    record_property("gpu", f"FSDP2, rank 1 of 2 killed in step 7: {steps[:1]}, digests {digests}")
    assert steps[0] == "step 7"
    assert len(digests) == 2
    assert digests[0] == digests[1]
