"""NVML asked by a process of its own. In the driver's place: programs that answer, fail, block."""

import importlib
import os
import sys
import time
import uuid
from pathlib import Path
from typing import cast

import pytest
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.commands import launch
from ft_run.launcher.machine import accelerators, nvml
from ft_run.launcher.machine.accelerators import AcceleratorKind, find_accelerators
from ft_run.launcher.machine.nvml import NvmlFailedError, NvmlGpu, gpus_by_process
from ft_run.launcher.options import LaunchOptions

DEADLINE_S = 0.5


def program(text: str) -> tuple[str, ...]:
    """What asks the driver, here without one."""
    return (sys.executable, "-c", text)


@pytest.fixture(autouse=True)
def asked_anew():
    """What was asked once per process is asked again."""
    accelerators._gpus_of_machine.cache_clear()
    yield
    accelerators._gpus_of_machine.cache_clear()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('print(\'{"error": "Driver/library version mismatch"}\')', "Driver/library version"),
        ("raise SystemExit(1)", "the process that asks it has failed"),
        ("import os; os.abort()", "the process that asks it has failed"),
    ],
)
def test_why_there_is_no_answer(text, reason):
    with pytest.raises(NvmlFailedError, match=reason):
        gpus_by_process(program(text), 60)


def test_a_driver_that_hangs_has_a_deadline(tmp_path):
    """The process ignores what would end it in order, as one in the kernel does."""
    file = tmp_path / "pid"
    blocks = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    with pytest.raises(NvmlFailedError, match=r"no answer within 5 s: the driver hangs"):
        gpus_by_process(program(blocks), 5)
    pid = int(file.read_text())
    while Path(f"/proc/{pid}/stat").exists() and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.01)


def test_a_hung_driver_leaves_the_device_files(monkeypatch, tmp_path):
    asked = []
    blocks = program("import time; time.sleep(600)")

    def hangs():
        asked.append(blocks)
        return gpus_by_process(blocks, DEADLINE_S)

    monkeypatch.setattr(accelerators, "gpus_by_process", hangs)
    monkeypatch.setattr(accelerators, "has_library", lambda: True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    for _ in range(2):
        found = find_accelerators(AcceleratorKind.NVIDIA, {}, root=tmp_path)
        assert found.count == 1
        assert "NVML fails: no answer within 0.5 s: the driver hangs" in found.source
    assert len(asked) == 1, "one that hangs is not asked again"


def test_what_a_process_tells_is_what_was_read():
    gpus = [NvmlGpu(2, "GPU-a", "0000:01:00.0", "H100", (("MIG-a", "MIG-GPU-a/1/0"),))]
    text = f"import json; print(json.dumps({{'answer': {gpus!r}}}))"
    text = "from ft_run.launcher.machine.nvml import NvmlGpu; " + text
    assert gpus_by_process(program(text)) == gpus


def test_the_program_that_asks_says_why_it_cannot():
    """No driver is here, or there is one that answers."""
    reason = ""
    try:
        gpus_by_process()
    except NvmlFailedError as error:
        reason = str(error)
    assert reason == ("" if nvml.has_library() else "there is no driver")


def test_an_interpreter_without_pynvml_says_so_where_there_is_a_driver(monkeypatch):
    monkeypatch.setattr(nvml, "has_library", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlFailedError, match=r"has no pynvml \(pip install nvidia-ml-py\)"):
        nvml.load_nvml()
    monkeypatch.setattr(nvml, "has_library", lambda: False)
    assert nvml.load_nvml() is None


class Fabric:
    """A driver's answers on the fabric of its GPUs, in the structure of nvidia-ml-py."""

    NVMLError = OSError

    def __init__(self, *gpus):
        self.gpus = gpus
        pynvml = importlib.import_module("pynvml")
        self.c_nvmlGpuFabricInfoV_t = pynvml.c_nvmlGpuFabricInfoV_t
        self.NVML_GPU_FABRIC_STATE_COMPLETED = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{gpu}"

    def nvmlDeviceGetGpuFabricInfoV(self, gpu, pointer):
        cluster, clique, state = gpu
        if cluster is None:
            raise OSError("Not Supported")
        pointer._obj.clusterUuid[:] = cluster
        pointer._obj.cliqueId, pointer._obj.state = clique, state


RACK = uuid.UUID("12345678-1234-5678-1234-567812345678").bytes


@pytest.mark.parametrize(
    ("gpus", "domain"),
    [
        ([(RACK, 7, 3), (RACK, 7, 3)], "12345678-1234-5678-1234-567812345678.7"),
        ([(RACK, 7, 3), (RACK, 8, 3)], ""),  # no domain holds the whole node
        ([(RACK, 7, 2)], ""),  # the fabric manager is not done
        ([(bytes(16), 0, 3)], ""),  # NVSwitches within one machine
        ([(None, 0, 0)], ""),
        ([], ""),
    ],
)
def test_the_nvlink_domain_of_a_node(monkeypatch, gpus, domain):
    found = tuple(nvml.read_gpus(cast(nvml.Nvml, Fabric(*gpus))))
    monkeypatch.setattr(accelerators, "_nvidia_gpus", lambda: found)
    assert accelerators.nvlink_domain() == domain


@pytest.mark.parametrize(
    ("options", "segment"),
    [
        ("--node-unit 2", "domain"),
        ("--node-unit 2 --segment rack", "rack"),
        ("--node-unit 2 --segment none", ""),
        ("", None),  # no driver is asked
    ],
)
def test_the_segment_of_a_node(monkeypatch, options, segment):
    monkeypatch.setattr(launch, "has_driver", lambda: True)
    monkeypatch.setattr(launch, "nvlink_domain", lambda: "domain")
    given = f"--nnodes 2 --rdzv-endpoint h --rdzv-id j {options} -m t"
    parsed = parse(given.split(), {})
    assert isinstance(parsed, LaunchOptions)
    assert launch._in_segment(parsed).rendezvous.segment == segment
