"""Block 1: what would end a job, or blame the wrong node, on a real driver.

A worker with much pinned memory, refused registrations, contexts of other GPUs, and a rank that
waits for its GPU while another one hangs.
"""

import math
import os
import re
from pathlib import Path

import pytest
from ft_run.tests.gpu.machine import FT_RUN, Tell, free_gb, in_torch, numbers, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

HOLDS_MEMORY = """
import os, signal, time, torch
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
free, total = torch.cuda.mem_get_info()
print(f"attempt={attempt} free_gb={free / 1e9:.1f} begins_at={time.time():.2f}", flush=True)
assert free > 0.85 * total
if attempt == "0":
    held = torch.empty(int(0.8 * total), dtype=torch.uint8, device="cuda").fill_(1)
    began = time.time()
    pinned = torch.empty(int(os.environ["PINNED_GIB"]) << 30, dtype=torch.uint8, pin_memory=True)
    pinned.fill_(1)
    torch.cuda.synchronize()
    print(f"pinning_s={time.time() - began:.1f} killed_at={time.time():.2f}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_memory_of_a_killed_worker_is_free_for_the_next_attempt(
    tmp_path: Path, record_property: Tell
) -> None:
    """However long the kernel takes to free its pinned memory, the job restarts."""
    script = tmp_path / "train.py"
    script.write_text(HOLDS_MEMORY)
    pinned_gib = 1 << int(math.log2(0.6 * free_gb()))  # torch pins a power of two
    done = run(*FT_RUN, "--max-restarts", "1", str(script), PINNED_GIB=str(pinned_gib))
    assert done.returncode == 0, done.stderr
    found = numbers(done.stdout)
    assert "killed_at" in found, done.stderr
    down_s = found["begins_at"] - found["killed_at"]
    record_property(
        "gpu", f"killed with {pinned_gib} GiB pinned: {done.stdout.split()}, {down_s:.1f} s"
    )
    for line in re.findall(r".*(?:not ended|still).*", done.stderr):
        record_property("gpu", line)


REGISTERED = """
import os, torch
from ft_run.training.checkpoints import memory_files
torch.ones(1, device="cuda")
def memory_of(size):
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    return torch.frombuffer(memory_files.mapped(fd, size), dtype=torch.uint8)
class Owner: pass
mine, other = Owner(), Owner()
memory = memory_of(1 << 22)
first = memory_files.register(memory, mine)
first.wait()
second = memory_files.register(memory, other)
second.wait()
print(memory.is_pinned())
print(torch.ones(4, device="cuda").sum().item())  # raises an error that was left pending
first.end()
print(memory.is_pinned())

whole = memory_of(1 << 22)
registration = memory_files.register(whole, mine)
registration.wait()
source = torch.randint(0, 255, (1 << 22,), dtype=torch.uint8, device="cuda")
whole.copy_(source, non_blocking=True)
torch.cuda.synchronize()
back = whole.to("cuda", non_blocking=True)
print(whole.is_pinned(), torch.equal(source.cpu(), whole), torch.equal(source, back))
registration.end()

call = torch.cuda.cudart().cudaHostRegister
assert all(int(call(whole.data_ptr() + at, 1 << 21, 0)) == 0 for at in (0, 1 << 21))
try:
    whole.copy_(source)
    torch.cuda.synchronize()
    print("copied")
except RuntimeError as error:
    print("refused")
"""


def test_a_refused_registration_leaves_no_error(record_property: Tell) -> None:
    """And a copy crosses no border of two registrations: each buffer is registered in one call."""
    found = in_torch(REGISTERED).split()
    record_property("gpu", f"registered, refused, copied, across two: {' '.join(found)}")
    assert found == ["True", "4.0", "False", "True", "True", "True", "refused"]


CONTEXTS = """
import os, subprocess, torch, torch.distributed as dist
from ft_run.training import Checkpointer
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", rank))
model = torch.nn.Linear(1000, 1000, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
for step in Checkpointer(os.environ["FOLDER"], state, checkpoint_every=None).steps(4):
    model(torch.ones(8, 1000, device="cuda")).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
dist.barrier()
listed = subprocess.run(
    ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"],
    capture_output=True, text=True,
).stdout
dist.barrier()
print(f"contexts={listed.count(str(os.getpid()) + ',')}", flush=True)
dist.destroy_process_group()
"""


def test_each_worker_has_a_context_on_its_own_gpu_only(
    tmp_path: Path, record_property: Tell
) -> None:
    gpus = int(in_torch("import torch; print(torch.cuda.device_count())"))
    if gpus < 2:
        pytest.skip("one GPU: needs two")
    script = tmp_path / "train.py"
    script.write_text(CONTEXTS)
    options = ("--nproc-per-node", "2", "--snapshot-replicas", "1")
    done = run(*FT_RUN, *options, str(script), FOLDER=str(tmp_path / "checkpoints"))
    assert done.returncode == 0, done.stderr
    record_property("gpu", f"contexts of two workers: {done.stdout.split()}")
    assert done.stdout.split() == ["contexts=1"] * 2


WAITS_FOR_GPU = """
import os, sys, torch, torch.distributed as dist
rank, device = int(os.environ["RANK"]), os.environ.get("DEVICE", "cuda")
dist.init_process_group("gloo")
parameter = torch.nn.Parameter(torch.zeros(2, device=device))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(4):
    parameter.grad = torch.ones(2, device=device)
    optimizer.step()
dist.barrier()
if rank == 1:
    open(os.environ["FIFO"]).read()  # hangs
if device == "cuda":
    torch.cuda._sleep(10**13)  # as a kernel that waits for the other rank
    torch.cuda.synchronize()
dist.barrier()
"""


def test_a_rank_that_waits_for_its_gpu_is_not_blamed(tmp_path: Path, record_property: Tell) -> None:
    script, fifo = tmp_path / "train.py", tmp_path / "fifo"
    script.write_text(WAITS_FOR_GPU)
    os.mkfifo(fifo)
    options = ("--nproc-per-node", "2", "--hang-timeout", "5")
    done = run(*FT_RUN, *options, str(script), FIFO=str(fifo))
    verdicts = re.findall(r"rank \d on node 0 \(\S+\) hangs in .*", done.stderr)
    record_property("gpu", f"rank 0 waits for its GPU, rank 1 hangs in read(): {verdicts[:1]}")
    assert done.returncode == 1, done.stderr
    assert verdicts, done.stderr
    assert all(verdict.startswith("rank 1 ") for verdict in verdicts)
