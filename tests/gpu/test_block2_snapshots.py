"""Block 2: snapshots and checkpoints on CUDA: the same bits after a restart, GB/s, pinning."""

import re
from pathlib import Path

import pytest
from ft_run.tests.gpu.machine import FT_RUN, Tell, free_gb, in_torch, numbers, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

TRAINS = """
import hashlib, os, resource, signal, time
import torch, torch.distributed as dist
from ft_run.training import Checkpointer

device = os.environ.get("DEVICE", "cuda")
backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
dist.init_process_group(backend, device_id=torch.device("cuda", 0) if device == "cuda" else None)
torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
width, layers = int(os.environ["WIDTH"]), 4
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(device)
optimizer = torch.optim.AdamW(model.parameters())
state_gb = 3 * sum(p.nbytes for p in model.parameters()) / 1e9  # AdamW has two of each
checkpointer = Checkpointer(
    os.environ["FOLDER"],
    {"model": model, "optimizer": optimizer},
    snapshot_every=int(os.environ["EVERY"]) or None,
    checkpoint_every=None,
    overlap=os.environ["OVERLAP"] == "1",
)
def now():
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
began = now()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
def peak_gb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
before_gb = peak_gb()
for step in checkpointer.steps(8):
    waited_s, began = now() - began, now()
    optimizer.zero_grad()
    model(torch.randn(16, width, device=device)).pow(2).sum().backward()
    optimizer.step()
    step_s = now() - began
    times = f"{waited_s:.3f} s, step: {step_s:.3f} s, peak: {peak_gb() - before_gb:.1f} GB"
    print(f"attempt {attempt} before step {step}: {times}", flush=True)
    if step == 5 and attempt == "0" and os.environ["KILLED"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    began = now()
digest = hashlib.sha256()
for value in model.parameters():
    digest.update(value.detach().cpu().numpy().tobytes())
print(f"state_gb={state_gb:.2f} digest {digest.hexdigest()}", flush=True)
dist.destroy_process_group()
"""


def train(folder: Path, *, is_killed: bool, overlap: bool, every: int = 1, **more: str) -> str:
    """Train for eight steps, killed in the sixth or not; return the output."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(TRAINS)
    # 4 matrices, each with two of AdamW, twice in memory and once on the GPU with its gradient.
    width = int(min(12_000, (min(free_gb() / 3, 20) * 1e9 / 48) ** 0.5))
    environ = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "FOLDER": str(folder / "checkpoints"),
        "WIDTH": str(width),
        "KILLED": "01"[is_killed],
        "OVERLAP": "01"[overlap],
        "EVERY": str(every),
        **more,
    }
    done = run(*FT_RUN, "--max-restarts", "1", str(script), **environ)
    assert done.returncode == 0, done.stderr
    assert ("attempt 1" in done.stdout) == is_killed, done.stdout
    return done.stdout


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
def test_a_restart_has_the_same_bits(
    tmp_path: Path, record_property: Tell, *, overlap: bool
) -> None:
    whole = train(tmp_path / "whole", is_killed=False, overlap=overlap)
    killed = train(tmp_path / "killed", is_killed=True, overlap=overlap)
    plain = train(tmp_path / "plain", is_killed=False, overlap=overlap, every=0)
    state_gb = numbers(whole)["state_gb"]
    waits = [float(text) for text in re.findall(r"before step \d: ([\d.]+) s", whole)]
    without = [float(text) for text in re.findall(r"before step \d: ([\d.]+) s", plain)]
    copy_s = max(1e-9, min(waits[3:]) - min(without[3:]))
    for line in re.findall("attempt [01] before .*", killed):
        record_property("gpu", f"overlap={overlap}, {line}")
    at, restored = re.findall(r"attempt 1 before step (\d): ([\d.]+) s", killed)[0]
    record_property(
        "gpu",
        f"{state_gb:.1f} GB, overlap={overlap}: training waits {copy_s:.3f} s for a snapshot"
        f" ({state_gb / copy_s:.1f} GB/s), the first ones {waits[1:3]} s; restored in {restored} s",
    )
    assert re.findall("digest .*", killed) == re.findall("digest .*", whole)
    assert re.findall("digest .*", plain) == re.findall("digest .*", whole)
    assert at == "5", "it resumed from an older step"
    assert not (tmp_path / "killed/checkpoints").exists(), "it resumed from storage"


PINNING = """
import os, time, torch
from ft_run.training.checkpoints import memory_files
torch.ones(1, device="cuda")
size = int(float(os.environ["SIZE_GB"]) * 2**30)
fd = os.memfd_create("test")
os.ftruncate(fd, size)
began = time.perf_counter()
memory = torch.frombuffer(memory_files.mapped(fd, size), dtype=torch.uint8)
mapped_s = time.perf_counter() - began
source = torch.empty(size, dtype=torch.uint8, device="cuda").random_(0, 255)
def copy_s(target, source):
    torch.cuda.synchronize()
    began = time.perf_counter()
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - began
plain_s = min(copy_s(memory, source) for _ in range(2))
class Owner: pass
owner = Owner()
began = time.perf_counter()
registration = memory_files.register(memory, owner)
registration.wait()
pinned_s = time.perf_counter() - began
down_s = min(copy_s(memory, source) for _ in range(3))
target = torch.empty_like(source)
up_s = min(copy_s(target, memory) for _ in range(3))
bounces = [torch.empty(1 << 26, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
arrived = [torch.cuda.Event() for _ in range(2)]
scratch = torch.empty(size, dtype=torch.uint8).fill_(1)  # not registered
def bounce_s():
    torch.cuda.synchronize()
    began = time.perf_counter()
    chunks = list(zip(scratch.split(1 << 26), source.split(1 << 26)))
    for turn in range(len(chunks) + 1):
        if turn < len(chunks):
            bounces[turn % 2][: len(chunks[turn][1])].copy_(chunks[turn][1], non_blocking=True)
            arrived[turn % 2].record()
        if turn:
            arrived[(turn - 1) % 2].synchronize()
            chunks[turn - 1][0].copy_(bounces[(turn - 1) % 2][: len(chunks[turn - 1][0])])
    return time.perf_counter() - began
through_s = min(bounce_s() for _ in range(2))
began = time.perf_counter()
registration.end()
unpinned_s = time.perf_counter() - began
gb = size / 1e9
print(f"mapped: {mapped_s / gb:.3f} s/GB, pinned: {pinned_s / gb:.3f} s/GB, unpinned:"
      f" {unpinned_s / gb:.3f} s/GB; to the host {gb / plain_s:.1f} GB/s unpinned and"
      f" {gb / down_s:.1f} GB/s pinned, to the GPU {gb / up_s:.1f} GB/s;"
      f" through a bounce buffer of 2 x 64 MiB {gb / through_s:.1f} GB/s"
      f" (same={torch.equal(scratch, source.cpu())});"
      f" same={torch.equal(target, source)}")
"""


def test_what_pinning_costs_and_gains(record_property: Tell) -> None:
    size_gb = min(16.0, free_gb() / 3)
    found = in_torch(PINNING, SIZE_GB=str(size_gb))
    record_property("gpu", f"{size_gb:.0f} GiB {found}")
    assert "same=True" in found
