"""Ways to stop a process: a signal, a debugger, a frozen cgroup."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
SEIZE, INTERRUPT = 0x4206, 0x4207
if libc.ptrace(SEIZE, pid, 0, 0) or libc.ptrace(INTERRUPT, pid, 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)  # __WALL
print("stopped", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def _signalled(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    while state(pid) != "T":
        time.sleep(0.001)
    yield
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def _traced(pid: int) -> Iterator[None]:
    command = [sys.executable, "-c", _TRACER, str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != "stopped\n":
            pytest.skip("this host does not let a debugger attach")
        try:
            yield
        finally:
            tracer.kill()


@contextlib.contextmanager
def _frozen(pid: int) -> Iterator[None]:
    root = Path("/sys/fs/cgroup")
    parent = root / "freezer" if (root / "freezer").is_dir() else root
    group = parent / f"ft-run-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    v1, v2 = group / "freezer.state", group / "cgroup.freeze"
    file, freeze, thaw = (v1, "FROZEN", "THAWED") if v1.exists() else (v2, "1", "0")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        file.write_text(freeze)
        is_frozen = "FROZEN" if file == v1 else "frozen 1"
        while is_frozen not in (v1 if file == v1 else group / "cgroup.events").read_text():
            time.sleep(0.001)
        yield
    finally:
        file.write_text(thaw)
        while (group / "cgroup.procs").read_text():
            with contextlib.suppress(OSError):
                (parent / "cgroup.procs").write_text(str(pid))
            time.sleep(0.001)
        group.rmdir()


STOPPERS: dict[str, Callable[[int], contextlib.AbstractContextManager[None]]] = {
    "SIGSTOP": _signalled,
    "debugger": _traced,
    "frozen cgroup": _frozen,
}


def state(pid: int) -> str:
    """Return the state of a process, one letter (``proc_pid_stat(5)``)."""
    return _fields(pid)[0]


def parent_of(pid: int) -> int:
    """Return the process ID of the parent of a process."""
    return int(_fields(pid)[1])


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
