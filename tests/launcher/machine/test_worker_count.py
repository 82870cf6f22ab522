"""What ``--nproc-per-node`` means, on machines built as trees and on this one."""

from pathlib import Path
from typing import Any

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.machine import accelerators, cpu_limit, worker_count
from ft_run.launcher.machine.cpu_limit import CpuLimit
from ft_run.launcher.machine.worker_count import (
    WorkerCount,
    omp_num_threads,
    resolve_worker_count,
)

ONE = (
    "no accelerator and no CPU limit; --nproc-per-node cpu starts a worker per CPU, as torchrun "
    "does"
)
QUOTA = "cgroup v2 cpu.max 350000/100000 at /pod"


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "has_library", lambda: False)


@pytest.fixture(autouse=True)
def cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cpu_limit, worker_count):
        monkeypatch.setattr(module, "allowed_cpus", lambda: frozenset(range(64)))
    monkeypatch.setattr(cpu_limit, "_count_machine_cpus", lambda _: 64)


def make_machine(
    root: Path, *, nvidia: int = 0, amd: int = 0, ascend: int = 0, xpu: int = 0, quota: str = "max"
) -> Path:
    """A machine of 64 CPUs with device files, and with ``quota`` in its own cgroup."""
    files = {
        "proc/self/cgroup": "0::/pod\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/pod/cpu.max": f"{quota} 100000\n",
    }
    files |= {f"dev/nvidia{index}": "" for index in range(nvidia)}
    files |= {f"dev/davinci{index}": "" for index in range(ascend)}
    topology = "sys/class/kfd/kfd/topology/nodes"
    files |= {f"{topology}/{index}/properties": "simd_count 304\n" for index in range(amd)}
    for number in range(128, 128 + xpu):
        files[f"dev/dri/renderD{number}"] = ""
        files[f"sys/class/drm/renderD{number}/device/vendor"] = "0x8086\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_more_workers_than_any_host_has_are_refused() -> None:
    assert resolve_worker_count("16384", "auto", {}).count == 16384
    with pytest.raises(UsageError, match="--nproc-per-node=16385 is more than 16384; give as many"):
        resolve_worker_count("16385", "auto", {})


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("8", 8), (" 4 ", 4), ("200", 200)])
@pytest.mark.parametrize("accelerator", ["auto", "nvidia.com/gpu", "cpu"])
def test_a_number_is_taken_as_it_is(
    text: str, count: int, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_not_read(*_: object, **__: object) -> None:
        raise AssertionError("the machine was looked at")

    monkeypatch.setattr(Path, "open", must_not_read)
    monkeypatch.setattr(Path, "iterdir", must_not_read)
    answer = resolve_worker_count(text, accelerator, {})
    assert answer == WorkerCount(count, "fixed number")


@pytest.mark.parametrize(
    ("nproc", "accelerator", "there", "count", "source"),
    [
        ("auto", "auto", {"nvidia": 4, "quota": "350000"}, 4, "device files /dev/nvidia*"),
        ("auto", "auto", {"amd": 2}, 2, "AMD GPUs by the kernel: 2"),
        ("auto", "auto", {"ascend": 8}, 8, "device files /dev/davinci*: 8"),
        ("auto", "auto", {"xpu": 1, "quota": "350000"}, 4, QUOTA),
        ("auto", "auto", {"quota": "350000"}, 4, QUOTA),
        ("auto", "auto", {}, 1, ONE),
        ("auto", "cpu", {"nvidia": 4, "quota": "350000"}, 4, QUOTA),
        ("auto", "cpu", {"nvidia": 4}, 1, ONE),
        ("auto", "amd.com/gpu", {"nvidia": 4, "amd": 2}, 2, "AMD GPUs by the kernel: 2"),
        ("auto", "ascend-npu", {"nvidia": 4, "ascend": 3}, 3, "device files /dev/davinci*: 3"),
        ("cpu", "auto", {"nvidia": 4, "quota": "350000"}, 4, QUOTA),
        ("cpu", "nvidia.com/gpu", {"nvidia": 4, "quota": "350000"}, 4, QUOTA),
        ("cpu", "auto", {}, 64, "no CPU limit, 64 CPUs to run on"),
        ("gpu", "auto", {"nvidia": 4, "amd": 2}, 4, "device files /dev/nvidia*"),
        ("gpu", "auto", {"amd": 2, "ascend": 8}, 2, "AMD GPUs by the kernel: 2"),
        ("gpu", "amd.com/gpu", {"nvidia": 4, "amd": 2}, 2, "AMD GPUs by the kernel: 2"),
        ("xpu", "auto", {"nvidia": 4, "xpu": 2}, 2, "render nodes of Intel in /dev/dri: 2"),
    ],
)
def test_count(
    nproc: str,
    accelerator: str,
    there: dict[str, Any],
    count: int,
    source: str,
    tmp_path: Path,
) -> None:
    machine = make_machine(tmp_path, **there)
    answer = resolve_worker_count(nproc, accelerator, {}, root=machine)
    assert answer.count == count
    assert answer.source.startswith(source)


def test_auto_says_what_it_did_not_choose(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, nvidia=2, amd=3, ascend=4)
    answer = resolve_worker_count("auto", "auto", {}, root=machine)
    assert answer == WorkerCount(
        2,
        "device files /dev/nvidia* (without NVML): 2"
        "; not counted: 3 that --accelerator=amd.com/gpu would choose"
        "; not counted: 4 that --accelerator=ascend-npu would choose",
    )


def test_hidden_gpus_do_not_count(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, nvidia=8, quota="350000")
    environ = {"CUDA_VISIBLE_DEVICES": ""}
    assert resolve_worker_count("auto", "auto", environ, root=machine) == WorkerCount(4, QUOTA)
    environ = {"CUDA_VISIBLE_DEVICES": "5,3"}
    assert resolve_worker_count("auto", "auto", environ, root=machine).count == 2


def test_mig_devices_count_where_each_worker_is_shown_one(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, nvidia=1)
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    plain = resolve_worker_count("gpu", "auto", environ, root=machine)
    assert plain.count == 1
    assert plain.source.endswith(
        "; a process can use one MIG device, and --virtual-local-rank would give each worker "
        "its own"
    )
    for nproc in ("gpu", "auto"):
        each = resolve_worker_count(nproc, "auto", environ, virtual_local_rank=True, root=machine)
        assert each.count == 2


@pytest.mark.parametrize(
    ("nproc", "accelerator", "there", "sentence"),
    [
        (
            "gpu",
            "auto",
            {"ascend": 2},
            "--nproc-per-node=gpu needs an NVIDIA or AMD GPU and none is visible "
            "(device files /dev/nvidia* (without NVML): 0; AMD GPUs by the kernel: 0); "
            "make one visible, or give --nproc-per-node=cpu or a number.",
        ),
        (
            "xpu",
            "auto",
            {"nvidia": 2},
            "--nproc-per-node=xpu needs an Intel GPU and none is visible "
            "(render nodes of Intel in /dev/dri: 0); "
            "make one visible, or give --nproc-per-node=cpu or a number.",
        ),
        (
            "gpu",
            "cpu",
            {"nvidia": 2},
            "--nproc-per-node=gpu conflicts with --accelerator=cpu; "
            "give --nproc-per-node=auto, or leave --accelerator out.",
        ),
        (
            "xpu",
            "nvidia.com/gpu",
            {"xpu": 2},
            "--nproc-per-node=xpu conflicts with --accelerator=nvidia.com/gpu; "
            "give --nproc-per-node=auto, or leave --accelerator out.",
        ),
        (
            "auto",
            "ascend-npu",
            {"nvidia": 2},
            "--accelerator=ascend-npu finds none of its kind (device files /dev/davinci*: 0); "
            "make one visible, or give --accelerator=cpu or a number of workers.",
        ),
    ],
)
def test_refusals(
    nproc: str, accelerator: str, there: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    machine = make_machine(tmp_path, **there)
    with pytest.raises(UsageError) as refusal:
        resolve_worker_count(nproc, accelerator, {}, root=machine)
    assert refusal.value.sentence == sentence


def test_this_machine_has_an_answer() -> None:
    for nproc in ("auto", "cpu"):
        answer = resolve_worker_count(nproc, "auto", {})
        assert answer.count >= 1
        assert answer.source


@pytest.mark.parametrize(
    ("environ", "workers", "limit", "expected"),
    [
        ({"OMP_NUM_THREADS": "7"}, 4, CpuLimit(4, ""), None),
        ({"OMP_NUM_THREADS": ""}, 4, None, None),
        ({"OMP_NUM_THREADS": "7"}, 1, CpuLimit(4, ""), None),
        ({}, 2, None, "1"),
        ({}, 2, CpuLimit(16, ""), "1"),
        ({}, 1, CpuLimit(4, ""), "4"),
        ({}, 1, None, None),
    ],
)
def test_omp_num_threads(
    environ: dict[str, str], workers: int, limit: CpuLimit | None, expected: str | None
) -> None:
    assert omp_num_threads(environ, workers, limit) == expected
