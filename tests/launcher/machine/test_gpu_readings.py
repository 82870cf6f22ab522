"""The process that watches the GPUs, with a driver as ``pynvml`` shows it."""

import json
import os
from typing import Any

import pytest
from ft_run.launcher.machine import gpu_readings
from ft_run.launcher.machine.gpu_readings import GpuReader


class Error(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Of:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Driver:
    """Two GPUs, as ``pynvml`` shows them."""

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

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Of:
        if self.is_lost and handle == 1:
            raise Error(15)
        return Of(used=10 << 30, total=80 << 30)

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


def test_xid_errors_are_returned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver: Any = Driver()
    reader = GpuReader(driver)
    assert driver.registered == [0, 1]
    assert list(reader.xids()) == []
    driver.is_lost = True
    driver.events += [(0, 79), (0, 79), (1, 31)]
    assert list(reader.xids()) == [("GPU-0", 79), ("GPU-0", 79), ("GPU-1", 31)]
    assert list(reader.xids()) == []


def test_only_visible_gpus_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver: Any = Driver()
    GpuReader(driver)
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
