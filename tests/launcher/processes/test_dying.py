"""Processes that were killed: those at work are waited for, and those that are not."""

import os
import signal
import subprocess
import sys

import pytest
from ft_run.launcher.processes import dying
from ft_run.launcher.processes.dying import (
    DEVICES_SURVIVE_KILL_S,
    ENDS_WITHIN_S,
    SURVIVES_KILL_S,
    Dying,
)
from ft_run.launcher.processes.tree import processor_ticks

LOOKS = 100


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The processor time that processes have used, by process id."""
    found: dict[int, int] = {}
    monkeypatch.setattr(dying, "processor_ticks", lambda pid: found.get(pid, 0))
    return found


def waited_s(ticks: dict[int, int], works_until_s: float, *, have_devices: bool) -> float:
    """Return how long two processes are waited for; one works in the kernel for so long."""
    ticks.update({7: 100, 8: 5})
    killed = Dying([7, 8], 1000.0, have_devices=have_devices)
    for look in range(1, LOOKS):
        now = look * SURVIVES_KILL_S
        if now <= works_until_s:
            ticks[8] += 1
        if not killed.go_on([7, 8], 1000.0 + now):
            return now
    raise AssertionError("for ever")


def test_processes_that_do_nothing_are_given_up(ticks: dict[int, int]) -> None:
    assert waited_s(ticks, 0, have_devices=False) == SURVIVES_KILL_S


def test_the_memory_of_gpus_takes_its_time(ticks: dict[int, int]) -> None:
    assert waited_s(ticks, 0, have_devices=True) == DEVICES_SURVIVE_KILL_S
    assert waited_s(ticks, 30, have_devices=True) == DEVICES_SURVIVE_KILL_S


@pytest.mark.parametrize("have_devices", [False, True])
def test_processes_that_work_are_waited_for(ticks: dict[int, int], have_devices: bool) -> None:
    """The first look after the work is over ends it."""
    assert waited_s(ticks, 300, have_devices=have_devices) == 300 + SURVIVES_KILL_S
    assert waited_s(ticks, 10_000, have_devices=have_devices) == ENDS_WITHIN_S


@pytest.mark.parametrize("works", [True, False])
def test_what_is_seen_of_a_process(works: bool) -> None:
    """In the kernel's place, which works for a process that is killed: the process itself."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as started:
        if not works:
            started.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, started.pid, os.WSTOPPED | os.WNOWAIT)
        killed = Dying([started.pid], 0.0, have_devices=False)
        before = processor_ticks(started.pid)
        while works and processor_ticks(started.pid) == before:
            pass
        assert killed.go_on([started.pid], SURVIVES_KILL_S) == works
        started.kill()


def test_a_process_that_is_gone_has_used_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as started:
        pass
    assert processor_ticks(started.pid) == 0
