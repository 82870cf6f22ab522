"""Which processes of a worker's session a signal reaches."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ft_run.launcher.processes import tree

USR1, TERM = signal.SIGUSR1, signal.SIGTERM

CHILD = """
import os, signal, sys
name, how = sys.argv[1:3]
out = os.open("log", os.O_WRONLY | os.O_APPEND)
def handle(number, frame):
    os.write(out, f"{name} handles {number}\\n".encode())
    signal.raise_signal(signal.SIGKILL)
for number in (signal.SIGUSR1, signal.SIGTERM):
    if how == "handles":
        signal.signal(number, handle)
    elif how == "ignores":
        signal.signal(number, signal.SIG_IGN)
    elif how == "waits":
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
if sys.argv[3:]:
    import subprocess
    subprocess.Popen([sys.executable, "-S", *sys.argv[:1], *sys.argv[3:]], restore_signals=False)
os.write(out, f"{name} is {os.getpid()}\\n".encode())
if how == "waits":
    import threading
    wait = lambda: handle(signal.sigwait([signal.SIGUSR1, signal.SIGTERM]), None)
    threading.Thread(target=wait).start()
while True:
    signal.pause()
"""


class Family:
    """Processes of one session, each the child of the previous one."""

    def __init__(self, folder: Path, *argv: str) -> None:
        self.log = folder / "log"
        self.log.touch()
        (folder / "child.py").write_text(CHILD)
        self.leader = subprocess.Popen(argv, cwd=folder, start_new_session=True)

    def await_lines(self, *expected: str) -> dict[str, int]:
        """Wait for lines of the log; return the process IDs by name."""
        while not all(one in self.log.read_text() for one in expected):
            time.sleep(0.01)
        text = self.log.read_text()
        words = (line.split() for line in text.splitlines())
        return {name: int(value) for name, verb, value in words if verb == "is"}

    @property
    def handled(self) -> set[str]:
        return {line.split()[0] for line in self.log.read_text().splitlines() if "handles" in line}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Family]]:
    """Start a family: the words of ``CHILD`` for each process, maybe with a shell around them."""
    made: list[Family] = []

    def run(*words: str, shell: str = "") -> Family:
        command = [sys.executable, "-S", "child.py", *words]
        if shell:
            command = ["sh", "-c", f'{shell} "$@"; true', "sh", *command]
        made.append(Family(tmp_path, *command))
        made[-1].await_lines(*(f"{name} is" for name in words[::2]))
        return made[-1]

    yield run
    for one in made:
        one.leader.kill()
        tree.kill_all(one.await_lines().values())
        one.leader.wait()


def is_alive(pid: int) -> bool:
    return not tree.is_zombie(pid)


@pytest.mark.parametrize("how", ["handles", "waits"])
def test_a_process_that_handles_a_signal_receives_it(
    start: Callable[..., Family], how: str
) -> None:
    family = start("worker", how, "helper", "dies")
    tree.signal_handlers(family.leader.pid, USR1, os.getpid())
    pids = family.await_lines("worker handles")
    assert is_alive(pids["helper"])


def test_a_process_that_would_die_of_a_signal_does_not_receive_it(
    start: Callable[..., Family],
) -> None:
    family = start("worker", "dies", "helper", "handles", "other", "dies")
    tree.signal_handlers(family.leader.pid, USR1, os.getpid())
    pids = family.await_lines("helper handles")
    assert is_alive(pids["worker"])
    assert is_alive(pids["other"])


def test_the_children_of_a_process_that_handles_sigterm_are_spared(
    start: Callable[..., Family],
) -> None:
    family = start("worker", "handles", "loader", "handles", "other", "dies")
    assert tree.signal_parents(family.leader.pid, TERM, os.getpid())
    pids = family.await_lines("worker handles")
    assert is_alive(pids["loader"])
    assert is_alive(pids["other"])
    assert family.handled == {"worker"}


@pytest.mark.parametrize("shell", ["trap '' TERM;", "trap 'exit 3' TERM;", ""])
def test_a_shell_and_its_program_receive_sigterm(start: Callable[..., Family], shell: str) -> None:
    """A shell may ignore the signal, handle it after its command, or end."""
    family = start("worker", "handles", "loader", "handles", shell=shell)
    assert tree.signal_parents(family.leader.pid, TERM, os.getpid())
    pids = family.await_lines("worker handles")
    assert is_alive(pids["loader"])


@pytest.mark.parametrize("how", ["dies", "ignores"])
def test_all_receive_sigterm_if_no_parent_handles_it(
    start: Callable[..., Family], how: str
) -> None:
    family = start("worker", how, "loader", "handles")
    assert not tree.signal_parents(family.leader.pid, TERM, os.getpid())
    family.await_lines("loader handles")


def test_a_process_that_has_ended_receives_nothing() -> None:
    ended = subprocess.Popen(["true"], start_new_session=True)
    ended.wait()
    tree.signal_handlers(ended.pid, USR1, os.getpid())
    assert not tree.signal_parents(ended.pid, TERM, os.getpid())
