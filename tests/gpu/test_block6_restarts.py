"""Block 6: a restart by its parts, and the processes that ft-run adds on a GPU."""

import re
import time
from pathlib import Path

import pytest
from ft_run.launcher.machine.nvml import gpus_by_process
from ft_run.tests.gpu.machine import FT_RUN, Tell, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PRELOADED = """
import os, sys
folder = f"/proc/{os.getppid()}/fd"
opened = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)]
print([path for path in opened if "nvidia" in path])
import torch
assert torch.ones(1, device="cuda").item() == 1
"""


def test_a_process_that_has_imported_torch_has_no_device_open(
    tmp_path: Path, record_property: Tell
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PRELOADED)
    done = run(*FT_RUN, "--preload", "torch", str(script))
    assert done.returncode == 0, done.stderr
    record_property("gpu", f"--preload torch has these devices open: {done.stdout.strip()}")
    assert "[]" in done.stdout


def test_what_nvml_costs_and_finds(record_property: Tell) -> None:
    """The time of the process that asks the driver, as at the start of a node."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        gpus = gpus_by_process()
        times.append(f"{time.perf_counter() - began:.2f} s")
    record_property("gpu", f"NVML by a process of its own: {', '.join(times)}; {gpus}")
    assert gpus


RESTARTS = """
import os, signal, time
began = time.perf_counter()
def part(name):
    global began
    print(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}: {name}"
          f" {time.perf_counter() - began:.2f} s", flush=True)
    began = time.perf_counter()
import torch, torch.distributed as dist
from ft_run.training import Checkpointer
part("imports")
device = torch.device(os.environ.get("DEVICE", "cuda"), 0)
is_cuda = device.type == "cuda"
torch.ones(1, device=device)
part("context")
if is_cuda:
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
else:
    dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1, device=device))
if is_cuda:
    torch.cuda.synchronize()
part("nccl")
model = torch.nn.Linear(12000 if is_cuda else 1000, 12000 if is_cuda else 1000, device=device)
optimizer = torch.optim.AdamW(model.parameters())
part("model")
state = {"model": model, "optimizer": optimizer}
for step in Checkpointer(os.environ["FOLDER"], state, checkpoint_every=None).steps(9):
    part(f"before step {step}")
    model(torch.ones(8, model.in_features, device=device)).sum().backward()
    optimizer.step()
    if is_cuda:
        torch.cuda.synchronize()
    part(f"step {step}")
    if step in (3, 6) and os.environ["TORCHELASTIC_RESTART_COUNT"] == str(step // 3 - 1):
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("preload", [(), ("--preload", "torch")], ids=["plain", "preload"])
def test_the_parts_of_a_restart(
    tmp_path: Path, record_property: Tell, preload: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RESTARTS)
    events = tmp_path / "events.jsonl"
    options = ("--max-restarts", "2", "--watch-workers", "--events", str(events), *preload)
    done = run(*FT_RUN, *options, str(script), FOLDER=str(tmp_path / "checkpoints"))
    assert done.returncode == 0, done.stderr
    for attempt in range(3):
        parts = re.findall(rf"attempt {attempt}: (.*)", done.stdout)
        record_property("gpu", f"attempt {attempt} {preload}: {'; '.join(parts)}")
    report = run(*FT_RUN, "report", str(events))
    for line in report.stdout.splitlines():
        record_property("gpu", line)
    assert report.returncode == 0, report.stderr
    assert "attempt 2: step 8" in done.stdout
