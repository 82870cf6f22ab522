"""How a worker's page counts the wait for data."""

import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from ft_run.training.worker import data_wait
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker.data_wait import DataWait
from ft_run.training.worker.phases import SAVING, TRAINING
from ft_run.training.worker.start import Page


class Loop:
    """A training loop in this process, with a clock set by hand, and maybe a device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: "Device | None" = None) -> None:
        self.now_ns = 1
        self.page = memoryview(mmap.mmap(-1, layout.PAGE_BYTES)).cast("Q")
        self.wait = DataWait(Page(self.page))
        self.page[layout.PHASE] = TRAINING
        clock = SimpleNamespace(monotonic_ns=lambda: self.now_ns)
        monkeypatch.setattr(data_wait, "time", clock)
        self.device = device
        if device is not None:
            device.loop = self
        cuda = SimpleNamespace(is_initialized=lambda: device is not None, Event=self.event)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    def event(self, *, enable_timing: bool) -> "DeviceEvent":
        assert enable_timing
        assert self.device is not None
        return DeviceEvent(self.device)

    def passes(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def fetches(
        self, seconds: float, *, processes: int = 2, has_batch: bool = True, number: int = 2
    ) -> None:
        counts = self.wait.begin()
        self.passes(seconds)
        if counts:
            iterator = SimpleNamespace(
                _num_workers=processes, _prefetch_factor=2, _num_yielded=number
            )
            self.wait.end(iterator, has_batch=has_batch)

    @property
    def waited_s(self) -> float:
        return self.page[layout.WAIT_NS] / 1e9


class Device:
    """Computes what is queued, one after the other."""

    loop: Loop

    def __init__(self) -> None:
        self.free_ns = 0

    def computes(self, seconds: float) -> None:
        self.free_ns = max(self.free_ns, self.loop.now_ns) + round(seconds * 1e9)


class DeviceEvent:
    """An event of a device: it happens when all that was queued before is done."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_ns = 0

    def record(self) -> None:
        self.at_ns = max(self._device.free_ns, self._device.loop.now_ns)

    def query(self) -> bool:
        return self._device.loop.now_ns >= self.at_ns

    def elapsed_time(self, other: "DeviceEvent") -> float:
        return (other.at_ns - self.at_ns) / 1e6


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_the_wait_for_batches_while_training(loop: Loop) -> None:
    loop.fetches(0.5)
    loop.fetches(0.0001)
    loop.fetches(9.0, has_batch=False)  # the end of an epoch
    loop.page[layout.PHASE] = SAVING
    loop.fetches(3.0)
    loop.page[layout.PHASE] = TRAINING
    loop.fetches(0.25, processes=4)
    assert loop.waited_s == pytest.approx(0.7501)
    assert loop.page[layout.BATCHES] == 3
    assert loop.page[layout.SQUARES] / 1e12 == pytest.approx(0.5**2 + 0.25**2)
    assert (loop.page[layout.PROCESSES], loop.page[layout.PREFETCH]) == (4, 2)


def test_the_first_batch_of_an_epoch_is_known(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.fetches(2.0, number=1)
    loop.fetches(0.5)
    assert loop.waited_s == pytest.approx(2.5)
    assert loop.page[layout.FIRST_WAIT_NS] == 2 * 10**9
    assert loop.page[layout.SQUARES] == 500_000**2
    loop = Loop(monkeypatch, Device())
    loop.fetches(2.0, number=1)
    loop.fetches(0.5)
    assert loop.page[layout.FIRST_WAIT_NS] == 2 * 10**9
    assert loop.page[layout.SQUARES] == 500_000**2


def test_a_wait_is_that_of_the_main_thread_of_this_process(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(loop.wait.begin).result()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        assert not loop.wait.begin()
    assert loop.wait.begin()


def test_the_loader_of_short_waits_is_known_too(loop: Loop) -> None:
    loop.page[layout.WAIT_NS] = 7
    loop.wait = DataWait(Page(loop.page))  # another process
    loop.page[layout.PHASE] = TRAINING
    assert loop.waited_s == 0.0
    assert loop.wait.begin()
    loop.wait.end(SimpleNamespace(_num_workers=3, _prefetch_factor=None), has_batch=True)
    assert (loop.page[layout.PROCESSES], loop.page[layout.PREFETCH]) == (3, 0)


def test_a_loader_within_a_dataset_is_not_counted_twice(loop: Loop) -> None:
    assert loop.wait.begin()
    loop.fetches(1.0)
    loop.fetches(1.0, has_batch=False)
    loop.passes(1.0)
    loop.wait.end(object(), has_batch=True)
    loop.fetches(1.0)
    assert loop.waited_s == pytest.approx(4.0)


def test_the_wait_behind_a_device_that_computes_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    loop = Loop(monkeypatch, device)
    for _ in range(10):
        device.computes(1.0)
        loop.fetches(0.9)
    assert loop.waited_s == 0.0


def test_the_wait_counts_while_the_device_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    loop = Loop(monkeypatch, device)
    for _ in range(10):
        device.computes(1.0)
        loop.fetches(1.5)
    assert loop.waited_s == pytest.approx(10 * 0.5)


def test_a_device_that_is_far_behind_leaves_few_events(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    loop = Loop(monkeypatch, device)
    device.computes(1000.0)
    for _ in range(100):
        loop.fetches(0.1)
    pending: Any = loop.wait._pending
    assert len(pending) <= 4
    loop.passes(1000.0)
    loop.fetches(0.5)
    loop.fetches(0.5)
    assert loop.waited_s == pytest.approx(1.0)


def test_a_wait_of_hours_is_within_a_word_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    loop.fetches(7200.0)
    loop.fetches(7200.0)
    assert loop.waited_s == 14_400.0
    assert loop.page[layout.SQUARES] == (1 << 64) - 1
