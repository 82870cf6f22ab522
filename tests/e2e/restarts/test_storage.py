"""Storages that are full, closed, slow or gone, and helpers that die: what is there afterwards.

Training goes on each time, unless the last checkpoint is lost, and each checkpoint that is visible
is whole and the state of its step.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.restarts.test_breakpoints import kept, names, start

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

pytestmark = pytest.mark.slow
ODD = Path(__file__).resolve().parents[2] / "harness" / "odd_storage"
FOREVER = 10**6


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class Odd:
    """A storage that does what it is told to."""

    def __init__(self, ft: "Launcher") -> None:
        self.ft, self.folder = ft, ft.folder / "odd/kept"
        self.folder.mkdir(parents=True)
        (self.folder / ".odd").touch()
        self.url = f"odd://{self.folder}"

    def is_to(self, word: str) -> None:
        (self.folder / "control.new").write_text(word)
        (self.folder / "control.new").rename(self.folder / "control")

    def start(self, *arguments: object, options: tuple[object, ...] = (), **env: str) -> "Command":
        env["PYTHONPATH"] = str(ODD)
        return start(self.ft, *arguments, options=options, folder=self.url, env=env)

    def saver(self, step: int) -> int:
        """Return the saver's process id, once it waits to write the checkpoint of a step."""
        path = self.folder / f"step-{step:08}"
        self.ft.wait_until(path.exists, "the saver has begun")
        (pid,) = (p for p, words in self.ft.processes().items() if "saver.process" in words)
        return pid

    def until_complete(self, step: int) -> None:
        path = self.folder / f"step-{step:08}/.metadata"
        self.ft.wait_until(path.exists, f"checkpoint {step} is complete")


@pytest.fixture
def odd(ft: "Launcher") -> Odd:
    return Odd(ft)


def leave(command: "Command") -> None:
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM


def pid_of(command: "Command", life: int = 0) -> int:
    return int(command.expect(r"begins at \d+ as (\d+)", life + 1)[life][1])


@pytest.mark.root
def test_a_full_disk(ft: "Launcher") -> None:
    with mounted(ft.folder / "kept", "size=1m"):
        command = start(ft, 90, -1, 20)
        assert command.wait() == 1
        full = r"\[Errno 28\] No space left on device"
        failed = re.findall(
            rf"checkpoint of step (\d+) not saved: {full}.*; the newest complete one is "
            r"that of step \d+",
            command.stderr,
        )
        steps = kept(ft)
        assert steps
        assert failed.count("90") == 5  # it is tried again
        command.expect(
            rf"^RuntimeError: the checkpoint of step 90 could not be written to .*{full}"
        )
        command.expect("job FAILED")
        assert not {*steps} & {*map(int, failed)}
        assert names(ft.folder / "kept") == {"latest"}


@pytest.mark.root
def test_a_container_with_a_small_shared_memory(ft: "Launcher") -> None:
    """The state has 100 MB, thus two copies more than three times what /dev/shm has."""
    mount = "mount -t tmpfs -o size=64m none /dev/shm"
    program = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$0" "$@"', *ft.program)
    options = ("--max-restarts", 1)
    command = start(ft, 12, 5, 4, options=options, program=program, env={"WIDTH": "5000"})
    assert command.wait() == 1
    command.expect("begins at 0 ")
    command.expect("begins at 5 ")
    assert kept(ft) == [4, 5]


@pytest.mark.root
@pytest.mark.parametrize("memory_limit", [512], indirect=True)
def test_a_container_with_little_memory(ft: "Launcher", memory_limit: tuple[str, ...]) -> None:
    """Two copies of the state do not fit; checkpoints are written by the worker itself."""
    program = (*memory_limit, *ft.program)
    command = start(ft, 4, -1, 2, program=program, env={"WIDTH": "5000"})
    assert command.wait() == 0, command.stderr
    (said,) = command.expect(
        r"\d ft-run no snapshot of step 1: not enough memory for 2 copies of the state of 1 "
        r"rank\(s\): (\S+) GB more needed, (\S+) GB available; snapshots are "
        "disabled, checkpoints only$"
    )
    assert float(said[1]) > float(said[2])
    assert kept(ft) == [2, 4]


def test_a_storage_that_hangs_holds_nothing_up(odd: Odd) -> None:
    odd.is_to("hang")
    command = odd.start(FOREVER, -1, 20)
    odd.saver(20)
    command.expect("step 102$")  # and snapshots are taken all the time, that of 100 is complete
    os.kill(pid_of(command), signal.SIGKILL)
    assert command.wait() == 1
    (lost,) = command.expect(r"snapshot of step (\d+) lost, .*: not finished within --shut")
    assert int(lost[1]) >= 100


def test_a_storage_that_hangs_at_the_end(odd: Odd) -> None:
    """It does not hold the job up for ever."""
    odd.is_to("hang")
    options = ("--shutdown-timeout", 3)
    command = odd.start(20, -1, options=options, SAVE_TIMEOUT="2s")
    assert command.wait() == 1
    command.expect(
        rf"RuntimeError: the checkpoint of step 20 could not be written to {odd.url}: no "
        "response from the storage for 2 s"
    )
    assert "retrying" not in command.stderr
    assert kept(odd.ft, odd.folder) == []


def test_a_worker_that_dies_while_its_checkpoint_is_written(odd: Odd) -> None:
    odd.is_to("hang")
    command = odd.start(FOREVER, -1, 20, options=("--max-restarts", 2))
    saver = odd.saver(20)
    command.expect("step 50$")
    os.kill(pid_of(command), signal.SIGKILL)
    begun = command.expect(r"begins at (\d+) as", 2)
    assert int(begun[1][1]) >= 49
    command.expect(f"step {int(begun[1][1]) + 20}$")
    assert odd.saver(20) == saver
    odd.is_to("fail 0")
    odd.until_complete(20)
    leave(command)
    steps = kept(odd.ft, odd.folder)
    assert steps[0] == 20
    assert steps[-1] >= int(begun[1][1]) + 19


def test_a_saver_that_dies_is_replaced(odd: Odd) -> None:
    odd.is_to("hang")
    command = odd.start(FOREVER, -1, 20)
    first = odd.saver(20)
    os.kill(first, signal.SIGKILL)
    odd.ft.wait_until(lambda: first not in odd.ft.processes(), "the saver is dead")
    odd.is_to("fail 0")
    odd.until_complete(20)
    leave(command)
    assert 20 in kept(odd.ft, odd.folder)


def test_a_storage_that_comes_and_goes(odd: Odd) -> None:
    odd.is_to("fail 5")  # one checkpoint fails: it is tried five times
    command = odd.start(FOREVER, -1, 20)
    command.expect(r"checkpoint of step 20 not saved: .*the storage is gone")
    odd.ft.wait_until(lambda: list(odd.folder.glob("step-*/.metadata")) != [], "one is complete")
    leave(command)
    steps = kept(odd.ft, odd.folder)
    assert 20 not in steps
    assert steps[0] % 20 == 0


def test_a_storage_that_is_gone_at_a_restart(odd: Odd) -> None:
    command = odd.start(FOREVER, -1, 20, options=("--max-restarts", 1))
    odd.until_complete(20)
    odd.is_to("gone")
    os.kill(pid_of(command), signal.SIGKILL)
    begun = command.expect(r"begins at (\d+) as", 2)
    command.expect(rf"checkpoints in {odd.url} cannot be listed: \[Errno 5\] the storage is gone: ")
    odd.is_to("fail 0")
    odd.until_complete((int(begun[1][1]) // 20 + 1) * 20)
    leave(command)
    assert 20 in kept(odd.ft, odd.folder)


def test_a_storage_that_is_gone_at_the_start(odd: Odd) -> None:
    odd.is_to("gone")
    command = odd.start(FOREVER, -1, 20)
    assert command.wait() == 1
    command.expect(
        rf"RuntimeError: checkpoints cannot be written to {odd.url}: \[Errno 5\] the storage"
    )


def test_an_agent_that_dies_while_a_checkpoint_is_written(odd: Odd) -> None:
    command = odd.start(FOREVER, -1, 20)
    odd.until_complete(20)
    odd.is_to("hang")
    last = max(int(path.parent.name[5:]) for path in odd.folder.glob("step-*/.metadata"))

    def has_begun() -> bool:
        newer = (p for p in odd.folder.glob("step-*") if int(p.name[5:]) > last)
        return any(not (path / ".metadata").exists() for path in newer)

    odd.ft.wait_until(has_begun, "another one has begun")
    command.send(signal.SIGKILL)
    command.wait()
    odd.ft.wait_until(lambda: not odd.ft.processes(), "nothing is left")
    before = kept(odd.ft, odd.folder)
    assert before
    odd.is_to("fail 0")
    command = odd.start(FOREVER, -1)
    (begun,) = command.expect(r"begins at (\d+) as")
    assert int(begun[1]) == before[-1]
    assert all((path / ".metadata").exists() for path in odd.folder.glob("step-*"))
    command.expect(f"step {before[-1] + 10}$")
    leave(command)
    assert kept(odd.ft, odd.folder)[-1] >= before[-1] + 9
