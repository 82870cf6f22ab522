"""When the memory of workers that ended is free. In NVML's place: what it would tell, in turn."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ft_run.launcher.machine import nvml
from ft_run.launcher.machine.gpu_memory import GpuMemory, amd_used
from ft_run.launcher.machine.gpu_watch import GpuWatch, Used
from ft_run.launcher.machine.nvml import NvmlFailedError
from ft_run.launcher.processes.tree import children
from ft_run.tests.harness.hand_clock import HandClock

GB = 1_000_000_000


class Driver:
    """Tells what is in use, one answer after the other; the last one again and again."""

    def __init__(self, *answers: Used | None) -> None:
        self.answers: Iterator[Used | None] = iter(answers)
        self.last: Used | None = None
        self.asked = 0

    async def ask(self) -> Used:
        self.asked += 1
        self.last = next(self.answers, self.last)
        if self.last is None:
            raise NvmlFailedError("the driver hangs")
        return self.last


def waited_s(driver: Driver, *, has_driver: bool = True) -> tuple[float, list[str]]:
    """How long the next round is held back, on a clock, and what is said."""
    clock = HandClock()
    told: list[str] = []
    done: list[float] = []
    memory = GpuMemory(
        lambda event: told.append(str(event)), has_driver=lambda: has_driver, ask=driver.ask
    )

    async def begin() -> None:
        memory.remember()
        await asyncio.sleep(0)
        memory.remember()
        if not memory.when_free(lambda: done.append(clock.now)):
            done.append(clock.now)

    clock.run_until_complete(begin())
    for _ in range(1000):
        clock.run_until_complete(asyncio.sleep(0))
        if done:
            break
        clock.pass_to(clock.now + 0.5)
    memory.close()
    clock.run_until_complete(asyncio.sleep(0))
    clock.close()
    (found,) = done
    return found, told


def test_without_a_driver_nothing_is_asked_and_nothing_waits() -> None:
    driver = Driver({})
    assert waited_s(driver, has_driver=False) == (0.0, [])
    assert driver.asked == 0


def test_the_next_round_waits_until_the_dead_have_given_back_their_memory() -> None:
    used = [{"GPU-a": GB, "GPU-b": size * GB} for size in (0, 120, 80, 40, 1)]
    found, told = waited_s(Driver(*used))
    assert found > 0
    assert told == []


def test_memory_that_was_in_use_before_the_workers_holds_nothing_up() -> None:
    assert waited_s(Driver({"GPU-a": 50 * GB})) == (0.0, [])


def test_memory_of_others_holds_nothing_up_for_long() -> None:
    found, told = waited_s(Driver({"GPU-a": 0}, {"GPU-a": 50 * GB}))
    assert 10 < found < 20
    assert told == ["the workers have exited, but GPU memory is still in use: GPU-a 50.0 GB"]


def test_what_goes_on_for_ever_is_bounded() -> None:
    sizes = [{"GPU-a": (900 - number) * GB} for number in range(800)]
    found, told = waited_s(Driver({"GPU-a": 0}, *sizes))
    assert 60 < found < 70
    assert len(told) == 1


def test_a_driver_that_does_not_answer_holds_nothing_up() -> None:
    driver = Driver(None)
    assert waited_s(driver)[1] == []
    assert driver.asked == 1  # not again after each round
    assert waited_s(Driver({"GPU-a": 0}, None))[1] == []


def test_memory_of_amd_gpus_is_read_from_the_kernels_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    for number, bus in ((1, 0x0C), (2, 0x22)):
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"simd_count 304\nlocation_id {bus << 8}\n")
        device = tmp_path / f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
        device.mkdir(parents=True)
        (device / "mem_info_vram_used").write_text(f"{number}000000000\n")
    assert amd_used(tmp_path) == {"0000:22:00.0": 2 * GB}
    (device / "mem_info_vram_used").unlink()
    assert amd_used(tmp_path) == {}


# --- the process that asks NVIDIA's driver -----------------------------------------------------

ANSWERS = """
import os, sys
print('{"xid": [3, "GPU-d", 79]}', flush=True)
print('{"xid": [3, "GPU-d", 45]}', flush=True)
while os.read(0, 1):
    print('{"answer": {"GPU-a": %d}}' % os.getpid(), flush=True)
"""


def watch(program: str, xid: Callable[[int, str, int], object] = print) -> GpuWatch:
    return GpuWatch(xid, (sys.executable, "-S", "-c", program))


def test_one_process_answers_all_questions_and_reports_errors_as_they_come() -> None:
    told: list[str] = []

    async def ask() -> None:
        memory = GpuMemory(lambda event: told.append(str(event)), has_driver=lambda: True)
        one = memory._watch = watch(ANSWERS, memory._note_xid)
        first = await one.used()
        assert await one.used() == first
        (pid,) = first.values()
        assert pid in children(os.getpid())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(NvmlFailedError):  # its end is known now
            await one.used()
        assert await one.used() != first
        memory.close()

    before = children(os.getpid())
    asyncio.run(ask())
    assert told == ["GPU 3 (GPU-d) has reported Xid 79"] * 2
    assert {*children(os.getpid())} <= {*before}


def test_lines_that_a_library_prints_are_ignored() -> None:
    noise = "for line in ('5', '[]', '{\"xid\": 4}', '[' * 9999): print(line, flush=True)\n"
    errors: list[object] = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        one = watch(noise + ANSWERS)
        assert "GPU-a" in await one.used()
        one.close()

    asyncio.run(ask())
    assert not errors


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import time; time.sleep(600)", "the driver hangs"),
        ('print(\'{"error": "there is no driver"}\')', "there is no driver"),
        ("", "the process that asks it has failed"),
    ],
)
def test_a_process_that_does_not_answer_is_given_up(
    program: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "DEADLINE_S", 0.2 if "sleep" in program else 60.0)
    before = children(os.getpid())

    async def ask() -> None:
        one = watch(program)
        with pytest.raises(NvmlFailedError, match=why):
            await one.used()
        one.close()

    asyncio.run(ask())
    assert {*children(os.getpid())} <= {*before}


_AGENT = """
import asyncio, os, sys, threading, time
from ft_run.launcher.machine.gpu_watch import GpuWatch
from ft_run.launcher.processes.tree import reap_all

def late(pid, options):  # in all other threads: the agent is always faster
    if threading.current_thread() is not threading.main_thread():
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.001)
    return waitpid(pid, options)

waitpid, os.waitpid = os.waitpid, late

async def reap():
    while True:
        reap_all()
        await asyncio.sleep(0)

async def ask():
    reaper = asyncio.create_task(reap())
    program = "while input() == '': print('{\\"answer\\": {\\"GPU-a\\": 7}}', flush=True)"
    for _ in range(3):
        watch = GpuWatch(print, (sys.executable, "-S", "-c", program))
        assert await watch.used() == {"GPU-a": 7}
        watch.close()
    reaper.cancel()

asyncio.run(ask())
"""


def test_the_process_that_asks_may_be_reaped_by_the_agent() -> None:
    """It reaps every child, since it adopts what the workers leave; that must not be warned of."""
    done = subprocess.run(
        (sys.executable, "-c", _AGENT), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
