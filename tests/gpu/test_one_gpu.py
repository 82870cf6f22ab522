"""The first hour on a GPU (docs/internals/gpu.md), as far as one GPU and no person are enough.

``pytest -m gpu tests/gpu`` on a machine with an NVIDIA GPU; everywhere else nothing of this runs.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

Tell = Callable[[str, object], None]
FT_RUN = (sys.executable, "-m", "ft_run")


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever becomes of it."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **environ}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def smi(what: str) -> list[list[str]]:
    """What nvidia-smi says: a row per GPU, or per process."""
    done = run("nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits")
    assert done.returncode == 0, done.stderr
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]


def check(*options: str, **environ: str) -> tuple[int, dict[str, object]]:
    """Check this machine; return the status and what is said of the node."""
    done = run(*FT_RUN, "check", "--nproc-per-node", "1", "--json", *options, **environ)
    assert done.stdout, done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    return done.returncode, node


def in_torch(program: str, **environ: str) -> str:
    """Return what a program of torch prints."""
    done = run(sys.executable, "-c", program, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_facts_are_those_of_nvidia_smi(record_property: Tell) -> None:
    _, node = check()
    facts = node["facts"]
    assert isinstance(facts, dict)
    for index, (name, driver, total, uncorrected) in enumerate(
        smi("gpu=name,driver_version,memory.total,ecc.errors.uncorrected.volatile.total")
    ):
        assert (facts[f"gpu{index}_name"], facts["driver"]) == (name, driver)
        assert facts[f"gpu{index}_memory_gb"] == pytest.approx(float(total) * 1.048576e-3, rel=0.02)
        if uncorrected.isdecimal():
            assert facts[f"gpu{index}_ecc_uncorrected"] == int(uncorrected)
        record_property("gpu", f"{name}, driver {driver}: facts as nvidia-smi has them")


@pytest.mark.parametrize("level", ["light", "full"])
def test_five_checks_in_a_row_agree(level: str, record_property: Tell) -> None:
    found = []
    for _ in range(5):
        status, node = check("--check-level", level)
        assert status == 0, node
        found.append(node["metrics"])
    for name in ("compute_tflops", "memory_gb_per_s", "copy_gb_per_s"):
        values = [float(metrics[name]) for metrics in found]  # type: ignore[index]  # of JSON
        spread = max(values) / min(values) - 1
        words = f"{level} {name}: {min(values):.1f} to {max(values):.1f}, {spread:.1%} apart"
        record_property("gpu", words)
        assert spread < 0.03, words


@pytest.mark.parametrize(
    "visible", ["0", "", "-1", "0,0", "0,-1", "7", "GPU-", "uuid", "prefix", "uuid,uuid"]
)
def test_what_is_visible_is_what_torch_counts(visible: str, record_property: Tell) -> None:
    uuid = smi("gpu=uuid")[0][0]
    value = visible.replace("uuid", uuid).replace("prefix", uuid[:12])
    seen = in_torch("import torch; print(torch.cuda.device_count())", CUDA_VISIBLE_DEVICES=value)
    ours = in_torch(
        "import os; from ft_run.launcher.machine.accelerators import *;"
        "print(find_accelerators(AcceleratorKind.NVIDIA, os.environ).count)",
        CUDA_VISIBLE_DEVICES=value,
    )
    record_property("gpu", f"CUDA_VISIBLE_DEVICES={visible!r}: {ours} here, {seen} for torch")
    assert ours == seen


def test_two_hundred_products_are_verified(record_property: Tell) -> None:
    said = in_torch(
        "import torch\n"
        "from ft_run.checks.measure_device import Product\n"
        "gpu, kind = torch.device('cuda'), torch.bfloat16\n"
        "product = Product(8192, gpu, dtype=kind, repeats_exactly=True)\n"
        "for _ in range(200): product.run(); product.verify(); product.compare()\n"
        "print('200 products of 8192 x 8192: right, and the same bit for bit')"
    )
    record_property("gpu", said)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("fail", 30), ("exit", 30), ("hang", 30), ("wrong-value", 30), ("slow-compute=3", 0)],
)
def test_an_injected_fault_leaves_nothing_on_the_gpu(
    fault: str, expected: int, record_property: Tell
) -> None:
    before = {row[0] for row in smi("compute-apps=pid")}
    status, node = check("--check-timeout", "60", FT_RUN_CHECK_FAULT=fault)
    record_property("gpu", f"{fault}: status {status}, {node['reason'] or 'no reason'}")
    assert status == expected
    assert {row[0] for row in smi("compute-apps=pid")} <= before


HOLDS_MEMORY = """
import os, signal, torch
free, total = torch.cuda.mem_get_info()
print(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}: {free / 1e9:.1f} GB free", flush=True)
assert free > 0.85 * total
held = torch.empty(int(0.8 * total), dtype=torch.uint8, device="cuda").fill_(1)
pinned = torch.ones(int(os.environ["PINNED_GB"]) * 10**9, dtype=torch.uint8).pin_memory()
torch.cuda.synchronize()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_attempt_has_all_the_memory_of_one_that_was_killed(
    tmp_path: Path, record_property: Tell
) -> None:
    script = tmp_path / "train.py"
    script.write_text(HOLDS_MEMORY)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pinned_gb = str(min(48, int(available / 3e9)))
    done = run(*FT_RUN, "--max-restarts", "1", str(script), PINNED_GB=pinned_gb)
    record_property("gpu", f"killed with {pinned_gb} GB pinned: " + done.stdout.replace("\n", "; "))
    assert done.returncode == 0, done.stderr


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


REFUSED = """
import os, torch
from ft_run.training.checkpoints.mapped_memory import mapped, register
torch.cuda.init()
fd = os.memfd_create("test")
os.ftruncate(fd, 1 << 22)
memory = torch.frombuffer(mapped(fd, 1 << 22), dtype=torch.uint8)
end = register(memory, memory)
print(end is not None, memory.is_pinned(), register(memory, memory))
print(torch.ones(4, device="cuda").sum().item())  # raises an error that was left pending
end()
print(memory.is_pinned())
"""


def test_a_registration_that_is_refused_leaves_no_error(record_property: Tell) -> None:
    assert in_torch(REFUSED).split() == ["True", "True", "None", "4.0", "False"]
    record_property("gpu", "memory that is registered twice: refused, and no error is left")


def test_a_check_that_is_interrupted_leaves_nothing_on_the_gpu(record_property: Tell) -> None:
    before = {row[0] for row in smi("compute-apps=pid")}
    command = (*FT_RUN, "check", "--nproc-per-node", "1", "--check-level", "full")
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "LOGLEVEL": "DEBUG"},
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "check: solo" in line)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert {row[0] for row in smi("compute-apps=pid")} <= before
    record_property("gpu", "interrupted: nothing left")
