"""Block 3: NCCL with what one GPU allows: a group of one, and two ranks on one GPU.

NCCL refuses two ranks on one GPU ("Duplicate GPU detected") before 2.30.
"""

import os
import re
import time
from pathlib import Path

import pytest
from ft_run.launcher.stacks.flight_recorder import FlightRecorders, record_collectives
from ft_run.launcher.stacks.recorded import read, summary
from ft_run.tests.gpu.machine import FT_RUN, Tell, in_torch, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def several_per_gpu() -> dict[str, str]:
    """The variables with which NCCL lets several ranks use one GPU."""
    version = in_torch("import torch; print(*torch.cuda.nccl.version())").split()
    if tuple(map(int, version[:2])) < (2, 30):
        pytest.skip(f"NCCL {'.'.join(version)}: two ranks on one GPU need 2.30")
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
    import subprocess
    import sys

    environ = dict(os.environ)
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
    assert sorted(done.stdout.splitlines()) == ["rank 0: -12.0", "rank 1: -12.0"]


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


def test_the_checks_of_two_workers_on_one_gpu(
    several_per_gpu: dict[str, str], record_property: Tell
) -> None:
    """The measurements of NCCL, which a worker alone on its node skips."""
    command = (*FT_RUN, "check", "--nproc-per-node", "2", "--json")
    done = run(*command, CUDA_VISIBLE_DEVICES="0,0", **several_per_gpu)
    record_property("gpu", f"ft-run check of two workers on one GPU: status {done.returncode}")
    record_property("gpu", (done.stdout or done.stderr)[-2000:])
