"""Block 8: what ft-run sees and changes in training on a GPU: data wait, memory, forks, errors."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from ft_run.tests.gpu.machine import FT_RUN, Tell, numbers, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LOADS = """
import sys, time, torch
load_s, step_s = map(float, sys.argv[1:])
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        time.sleep(load_s)
        return index
torch.cuda._sleep(1000)
torch.cuda.synchronize()
began = time.perf_counter()
torch.cuda._sleep(10**9)
torch.cuda.synchronize()
hertz = 1e9 / (time.perf_counter() - began)
parameter = torch.nn.Parameter(torch.zeros(2, device="cuda"))
optimizer = torch.optim.SGD([parameter], lr=0.1)
began = 0.0
for _ in torch.utils.data.DataLoader(Data(), num_workers=1, collate_fn=list):
    torch.cuda._sleep(int(step_s * hertz))
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    began = began or time.perf_counter()
    if time.perf_counter() - began > 12:
        break
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("load_s", "step_s", "least", "most"),
    [(0.05, 0.02, 0.5, 0.7), (0.02, 0.05, 0.0, 0.05)],
    ids=["starved", "hidden by the GPU"],
)
def test_a_wait_counts_while_the_gpu_is_idle(
    tmp_path: Path, record_property: Tell, load_s: float, step_s: float, least: float, most: float
) -> None:
    script, events = tmp_path / "train.py", tmp_path / "events.jsonl"
    script.write_text(LOADS)
    options = ("--auto-tune", "advise", "--events", str(events))
    done = run(*FT_RUN, *options, str(script), str(load_s), str(step_s))
    assert done.returncode == 0, done.stderr
    report = json.loads(run(*FT_RUN, "report", "--json", str(events)).stdout)
    measured = report["summary"]["measured"]
    share = measured["wait_s"] / measured["training_s"]
    advice = [one["text"] for one in report["summary"]["advice"]]
    record_property("gpu", f"a batch {load_s} s, a step {step_s} s: waits {share:.1%}; {advice}")
    assert least <= share <= most, measured


OUT_OF_MEMORY = """
import sys, torch, torch.distributed as dist
from ft_run.training import Checkpointer, ElasticBatches
from torch.utils.data import DataLoader, TensorDataset
device = torch.device("cuda", 0)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
size = torch.cuda.get_device_properties(device).total_memory // 56  # a sample: a 14th
torch.manual_seed(0)
model = torch.nn.Linear(4, 1, device=device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
dataset = TensorDataset(torch.arange(24), torch.randn(24, 4))
data = ElasticBatches(dataset, 8, seed=5, micro_batch=int(sys.argv[2]))
loader = DataLoader(dataset, batch_sampler=data)
state = {"model": model, "optimizer": optimizer, "data": data}
checkpointer = Checkpointer(sys.argv[1], state, checkpoint_every=None)
for step in checkpointer.steps(data, epochs=2):
    sizes, samples = [], []
    for part in data.parts(loader, step):
        with part.sync(model):
            index, x = part.batch
            out = model(x.to(device))
            wide = out.expand(-1, size) * 1.5
            held = [torch.ones_like(wide) for _ in range(3)]
            out = wide.mean(1)
            (out.square().mean() * part.weight).backward()
            del wide, held
        sizes.append(part.samples)
        samples += index.tolist()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, samples == data.samples(step).tolist(), sizes, flush=True)
print("weights", *(p.tolist() for p in model.parameters()), flush=True)
dist.destroy_process_group()
"""


def test_parts_shrink_until_they_fit(tmp_path: Path, record_property: Tell) -> None:
    """A sample needs 4/14 of the memory and more: parts of 8 and of 4 samples do not fit."""
    script = tmp_path / "train.py"
    script.write_text(OUT_OF_MEMORY)
    options = ("--on-failure", "device-oom=shrink", str(script))
    done = run(*FT_RUN, *options, str(tmp_path / "shrinks"), "8")
    for line in done.stderr.splitlines():
        if "micro_batch" in line:
            record_property("gpu", line)
    assert done.returncode == 0, done.stderr
    shrunk = re.findall(r"micro_batch (\S+ -> \S+) on all", done.stderr)
    assert shrunk[:2] == ["8 -> 4", "4 -> 2"]
    fits = int(shrunk[-1].split()[-1])
    sizes = [fits] * (8 // fits)
    assert re.findall(rf"step (\d) True {re.escape(str(sizes))}", done.stdout) == list("012345")
    small = run(*FT_RUN, *options, str(tmp_path / "small"), str(fits))
    assert small.returncode == 0, small.stderr
    assert "micro_batch" not in small.stderr
    record_property("gpu", f"the same weights with parts of {fits} from the start")
    assert _weights(done.stdout) == pytest.approx(_weights(small.stdout), rel=1e-4)


def _weights(out: str) -> list[float]:
    (line,) = re.findall("weights .*", out)
    return [float(value) for value in re.findall(r"-?\d\.\d+", line)]


LEARNS = """
import os, signal, sys, time
began = time.perf_counter()
warm = "ft_run.training.checkpointer" in sys.modules
import torch, torch.distributed as dist
from ft_run.training import Checkpointer
imports_s = time.perf_counter() - began
device = torch.device("cuda", 0)
opened = [path for path in (os.path.realpath(f"/proc/{os.getppid()}/fd/{fd}")
          for fd in os.listdir(f"/proc/{os.getppid()}/fd")) if "nvidia" in path]
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
model = torch.nn.Linear(1000, 1000, device=device)
optimizer = torch.optim.AdamW(model.parameters())
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
state = {"model": model, "optimizer": optimizer}
for step in Checkpointer(sys.argv[1], state, checkpoint_every=None).steps(6):
    model(torch.randn(8, 1000, device=device)).sum().backward()
    optimizer.step()
    if step == 3 and not attempt:
        print("ready", flush=True)
        sys.stdin.read()
        time.sleep(600)
torch.cuda.synchronize()
print(f"attempt {attempt}: forked {warm}, devices of the parent {opened},"
      f" imports {imports_s:.2f} s, running after {time.perf_counter() - began:.2f} s", flush=True)
dist.destroy_process_group()
"""


def test_the_modules_of_a_gpu_job_are_safe_to_fork(tmp_path: Path, record_property: Tell) -> None:
    """``--preload auto`` learns them; a worker of the restart is forked and computes."""
    script = tmp_path / "train.py"
    script.write_text(LEARNS)
    command = (
        *FT_RUN,
        "--max-restarts",
        "1",
        "--preload",
        "auto",
        str(script),
        str(tmp_path / "c"),
    )
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        said = []
        for line in job.stderr:
            said.append(line)
            if "preload: " in line:
                break
        record_property("gpu", said[-1].strip())
        (worker,) = [
            int(name)
            for name in os.listdir("/proc")
            if name.isdecimal() and _is_worker(int(name), str(script))
        ]
        os.kill(worker, 9)
        out, err = job.communicate()
    record_property("gpu", out.strip().splitlines()[-1])
    assert job.returncode == 0, err
    assert "the next workers are forked" in said[-1]
    assert "attempt 1: forked True, devices of the parent []" in out


def _is_worker(pid: int, script: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return script.encode() in words and b"-m" not in words and b"ft_run" not in words


SCALES = """
import sys, time, torch
from ft_run.training import Checkpointer
device = torch.device("cuda", 0)
model = torch.nn.Linear(4000, 4000, device=device)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler()
state = {"model": model, "optimizer": optimizer}
if sys.argv[2] == "scaler":
    state["scaler"] = scaler
scaler.scale(torch.ones(1, device=device))
gaps, ended = [], 0.0
for step in Checkpointer(sys.argv[1], state, checkpoint_every=None).steps(12):
    if step > 3:
        gaps.append(time.perf_counter() - ended)
    torch.cuda._sleep(2 * 10**8)  # about 0.1 s
    scaler.scale(model(torch.ones(8, 4000, device=device)).sum()).backward()
    optimizer.step()
    ended = time.perf_counter()
gaps.sort()
print(f"gap_ms={1e3 * gaps[len(gaps) // 2]:.2f}", flush=True)
"""


def test_what_a_grad_scaler_costs(tmp_path: Path, record_property: Tell) -> None:
    """Each snapshot waits for the kernels of its step; without the scaler it does not."""
    script = tmp_path / "train.py"
    script.write_text(SCALES)
    for name in ("plain", "scaler"):
        done = run(*FT_RUN, str(script), str(tmp_path / name), name)
        assert done.returncode == 0, done.stderr
        record_property("gpu", f"{name}: {numbers(done.stdout)} between steps of 0.1 s of GPU time")


ENDS = """
import sys, torch
from ft_run.training import Checkpointer
device = torch.device("cuda", 0)
model = torch.nn.Linear(16000, 16000, device=device)  # 1 GB; with AdamW 3
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
for step in Checkpointer(sys.argv[1], state, checkpoint_every=None).steps(6):
    model(torch.ones(8, 16000, device=device)).sum().backward()
    optimizer.step()
    if step == int(sys.argv[2]):
        if sys.argv[3] == "raise":
            raise ValueError("planted")
        sys.exit(7)
"""


@pytest.mark.parametrize(("how", "status"), [("exit", 7), ("raise", 1)])
@pytest.mark.parametrize("step", [1, 2])
def test_a_worker_that_ends_while_memory_is_registered(
    tmp_path: Path, record_property: Tell, how: str, status: int, step: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ENDS)
    done = run(*FT_RUN, str(script), str(tmp_path / "checkpoints"), str(step), how)
    record_property("gpu", f"{how} in step {step}: {done.stderr.strip().splitlines()[-1]}")
    assert f"exited with {status}" in done.stderr, done.stderr
    assert "terminate called" not in done.stderr


FAULTY = """
import ctypes, time, torch
torch.ones(1, device="cuda")
cuda = ctypes.CDLL("libcuda.so.1")
code = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry reads() {
    .reg .u64 %a;
    .reg .u32 %v;
    mov.u64 %a, 0;
    ld.global.u32 %v, [%a];
    st.global.u32 [%a], %v;
    ret;
}
'''
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuModuleLoadData(ctypes.byref(module), code) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"reads") == 0
none = ctypes.c_void_p()
assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, none, none, none) == 0
try:
    torch.cuda.synchronize()
finally:
    time.sleep(2)  # the driver reports it by itself
"""


def test_an_error_of_the_gpu_is_reported(tmp_path: Path, record_property: Tell) -> None:
    """A kernel that reads address 0: Xid 31, or 13; a virtual machine may not pass it on."""
    script, events = tmp_path / "train.py", tmp_path / "events.jsonl"
    script.write_text(FAULTY)
    done = run(*FT_RUN, "--max-restarts", "1", "--events", str(events), str(script))
    found = re.findall(r".*Xid.*", done.stderr)
    kinds = [json.loads(line)["name"] for line in events.read_text().splitlines()]
    record_property("gpu", f"a kernel that reads address 0: {found or done.stderr[-600:]}")
    record_property("gpu", f"gpu.xid events: {kinds.count('gpu.xid')}")
    assert done.returncode == 1, done.stderr
    assert "illegal memory access" in done.stderr
    assert found, done.stderr
