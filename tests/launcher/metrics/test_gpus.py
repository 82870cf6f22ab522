"""The metrics of GPUs: a driver made of Python, and processes that answer, fail and block."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ft_run.launcher.machine import gpu_readings
from ft_run.launcher.machine.gpu_readings import GpuReader, GpuReading
from ft_run.launcher.metrics import catalogue as c
from ft_run.launcher.metrics import gpus as metrics_gpus
from ft_run.launcher.metrics.catalogue import Samples
from ft_run.launcher.metrics.gpus import Gpus


class Error(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Of:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Driver:
    """Two GPUs, as ``pynvml`` shows them; the second has no ECC and no power meter."""

    NVMLError = Error
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.is_lost = False
        self.registered: list[int] = []
        self.events: list[tuple[int, int]] = []

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        if self.is_lost and handle == 1:
            raise Error(15)
        return f"GPU-{handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Of:
        if self.is_lost and handle == 1:
            raise Error(15)
        return Of(gpu=75 * (1 - handle), memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Of:
        if self.is_lost and handle == 1:
            raise Error(15)
        return Of(used=10 << 30, total=80 << 30)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == 0
        return 60 + handle

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle:
            raise Error(3)
        return 250_500

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        assert counter == 0
        if handle:
            raise Error(3)
        return (5, 1)[kind]

    def nvmlEventSetCreate(self) -> object:
        return self.events

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:
        assert (kinds, events) == (8, self.events)
        self.registered.append(handle)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Of:
        assert timeout_ms == 0
        if not self.events:
            raise Error(10)
        device, xid = self.events.pop(0)
        return Of(device=device, eventData=xid)


def test_readings_of_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver: Any = Driver()
    reader = GpuReader(driver)
    assert driver.registered == [0, 1]
    first = GpuReading(0, "GPU-0", 0.75, 10 << 30, 80 << 30, 60, 250.5, 5, 1)
    second = GpuReading(1, "GPU-1", 0.0, 10 << 30, 80 << 30, 61)
    assert reader.readings() == [first, second]
    driver.is_lost = True
    assert reader.readings() == [first, GpuReading(1, "GPU-1")]
    assert list(reader.xids()) == []
    driver.events += [(0, 79), (0, 79), (1, 31)]
    assert list(reader.xids()) == [("GPU-0", 79), ("GPU-0", 79), ("GPU-1", 31)]
    assert list(reader.xids()) == []


def test_only_visible_gpus_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver: Any = Driver()
    assert [gpu.number for gpu in GpuReader(driver).readings()] == [1]
    assert driver.registered == [1]


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_process_of_the_agent(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ends with its input, after two questions, also where a GPU is lost meanwhile."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver: Any = Driver()
    reader = GpuReader(driver)
    driver.events += [(1, 79)]
    driver.is_lost = is_lost
    reading, writing = os.pipe()
    os.write(writing, b"\n\n")
    os.close(writing)
    gpu_readings._watch(driver, reader, reading)
    os.close(reading)
    used = {"answer": {f"GPU-{number}": 10 << 30 for number in range(2 - is_lost)}}
    lines = map(json.loads, capfd.readouterr().out.splitlines())
    assert list(lines) == [{"xid": [1, "GPU-1", 79]}, used, used]


def test_the_process_without_a_driver() -> None:
    gpus = Gpus()
    gpus._is_there = True
    samples = scrape(gpus)
    gpus.close()
    if samples[c.NVML_UP] == {(): 1}:
        pytest.skip("this machine has a driver")
    assert samples == {c.NVML_UP: {(): 0}}


# --- the process -------------------------------------------------------------------------------

ANSWERS = """
import json, sys
for number, _ in enumerate(sys.stdin):
    gpu = [3, "GPU-3", 0.5 + number / 8, 1, 2, 60, None, 4, 0]
    print(json.dumps({"answer": [[gpu], [["GPU-3", 79], ["GPU-3", 13]][: number + 1]]}), flush=True)
"""


def gpus_of(text: str) -> Gpus:
    gpus = Gpus()
    gpus._command, gpus._is_there = (sys.executable, "-c", text), True
    return gpus


def scrape(gpus: Gpus) -> Samples:
    samples = Samples()
    gpus.add(samples)
    return samples


def test_one_process_answers_all_scrapes() -> None:
    gpus = gpus_of(ANSWERS)
    first, second = scrape(gpus), scrape(gpus)
    gpus.close()
    assert first[c.NVML_UP] == {(): 1}
    assert first[c.GPU_UTILIZATION] == {("3", "GPU-3"): 0.5}
    assert c.GPU_POWER not in first
    assert first[c.GPU_ECC] == {
        ("3", "GPU-3", "corrected"): 4,
        ("3", "GPU-3", "uncorrected"): 0,
    }
    assert first[c.GPU_XID] == {("3", "GPU-3", "79"): 1}
    assert second[c.GPU_UTILIZATION] == {("3", "GPU-3"): 0.625}
    assert second[c.GPU_XID] == {("3", "GPU-3", "79"): 2, ("3", "GPU-3", "13"): 1}


def test_a_driver_that_hangs_costs_one_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    blocks = (
        f"import time; file = open({str(started)!r}, 'a'); file.write('x'); file.close();"
        " time.sleep(600)"
    )
    monkeypatch.setattr(metrics_gpus, "_ANSWER_S", 0.5)
    gpus = gpus_of(blocks)
    began = time.monotonic()
    for _ in range(50):
        assert scrape(gpus) == {c.NVML_UP: {(): 0}}
    assert time.monotonic() - began < 20  # not 50 times half a second
    assert len(started.read_text() if started.exists() else "") <= 1
    monkeypatch.setattr(metrics_gpus, "_AGAIN_S", 0.0)
    assert scrape(gpus) == {c.NVML_UP: {(): 0}}


def test_a_process_that_dies_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    gpus = gpus_of(f"import os; os.path.exists({str(broken)!r}) and os.abort()\n{ANSWERS}")
    assert scrape(gpus)[c.NVML_UP] == {(): 0}
    broken.unlink()
    assert scrape(gpus)[c.NVML_UP] == {(): 0}
    monkeypatch.setattr(metrics_gpus, "_AGAIN_S", 0.0)
    assert scrape(gpus)[c.NVML_UP] == {(): 1}
    gpus.close()


def test_a_machine_without_a_driver_has_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_gpus, "has_library", lambda: False)
    assert scrape(Gpus()) == {}
