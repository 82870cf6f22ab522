"""Runs one job under one launcher, checks that it went right, and leaves no process behind."""

import enum
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from procfs import MARK, marked

WORKER = Path(__file__).with_name("worker.py")
_GONE_S = 5.0
"""A launcher has exited: what it started has this long to be gone."""


class Launcher(enum.Enum):
    """What runs the job; the value is the command, beside this interpreter."""

    TORCHRUN = "torchrun"
    FT_RUN = "ft-run"

    @property
    def path(self) -> Path:
        """Where the command is installed."""
        return Path(sys.executable).with_name(self.value)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a job is and how its agents are started."""

    agents: int = 1
    workers: int = 2
    """Per agent."""
    spares: int = 0
    """How many of the agents are in no world as long as all are there."""
    lone_master: bool = False
    """The master is a process of its own (ft-run only)."""
    nnodes: str = "1"
    max_restarts: int = 0
    rdzv_conf: str = ""
    imports: str = ""
    """A module that every worker imports before it writes its line; ft-run preloads it."""
    token: str = ""
    """The secret of the job (ft-run only); empty: the wire is plain text."""
    is_watched: bool = False
    """The workers are (ft-run only)."""
    endpoints: int = 1
    """How many hosts may lead (ft-run only); all are this one."""

    @property
    def world_size(self) -> int:
        """All workers that run at a time."""
        return (self.agents - self.spares) * self.workers

    def arguments(self, launcher: Launcher, ports: Sequence[int]) -> list[str]:
        """Return the launcher's arguments: the same ones for both, but for ``--preload``."""
        given = ["--nproc-per-node", str(self.workers), "--max-restarts", str(self.max_restarts)]
        if self.imports and launcher is Launcher.FT_RUN:
            given += ["--preload", self.imports]
        if self.is_watched and launcher is Launcher.FT_RUN:
            given += ["--watch-workers"]
        if self.nnodes == "1":
            return ["--standalone", *given]
        given += ["--nnodes", self.nnodes, "--rdzv-id", "benchmark", "--rdzv-backend", "c10d"]
        given += ["--rdzv-endpoint", ",".join(f"127.0.0.1:{port}" for port in ports)]
        return [*given, "--rdzv-conf", self.rdzv_conf] if self.rdzv_conf else given


@dataclass(frozen=True, slots=True)
class Line:
    """What a worker wrote when it began to run."""

    attempt: int
    rank: int
    world_size: int
    restarts: int
    """Its TORCHELASTIC_RESTART_COUNT."""
    pid: int
    time_ns: int


@dataclass(slots=True)
class JobResult:
    """What became of one job."""

    started_ns: int
    lines: list[Line] = field(default_factory=list)
    death_ns: int | None = None
    statuses: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    """Of the launcher and everything it waited for, the workers included."""
    wall_s: float = 0.0
    """From the command to the exit of the last agent."""
    problems: list[str] = field(default_factory=list)
    log: str = ""

    def first_lines_s(self, attempt: int, since_ns: int) -> float:
        """Return the seconds from a time to the line of the last worker of an attempt."""
        return (max(ln.time_ns for ln in self.lines if ln.attempt == attempt) - since_ns) / 1e9


def parse_lines(text: str) -> list[Line]:
    """Return what workers wrote; other output is passed over."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 7 and words[0] == "bench" and all(map(str.isdecimal, words[1:])):
            found.append(Line(*map(int, words[1:])))
    return found


def check_lines(
    lines: Iterable[Line], launcher: Launcher, shape: Shape, attempts: int
) -> list[str]:
    """Return what is wrong with the lines of a job: a worker missing, twice there, or wrong."""
    problems = []
    by_attempt: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        by_attempt[line.attempt].append(line)
    if sorted(by_attempt) != list(range(attempts)):
        problems.append(f"attempts {sorted(by_attempt)}, not {list(range(attempts))}")
    for attempt, members in sorted(by_attempt.items()):
        ranks = sorted(line.rank for line in members)
        if ranks != list(range(shape.world_size)):
            problems.append(f"attempt {attempt}: ranks {ranks} of {shape.world_size}")
        if any(line.world_size != shape.world_size for line in members):
            problems.append(f"attempt {attempt}: another world size than {shape.world_size}")
        # torchrun counts per node: only on one node is its count that of the job.
        counts = {line.restarts for line in members}
        if (launcher is Launcher.FT_RUN or shape.nnodes == "1") and counts != {attempt}:
            problems.append(f"attempt {attempt}: restart counts {sorted(counts)}")
    return problems


class Job:
    """A job that runs. Use ``running_job``."""

    def __init__(self, launcher: Launcher, shape: Shape, mode: str, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self._launcher, self._shape = launcher, shape
        self._folder = folder
        self._output = folder / "output"
        self._errors = folder / "errors"
        (folder / "tmp").mkdir()
        (folder / "workers").mkdir()
        os.mkfifo(folder / "workers" / "release")
        # Held for reading too: a worker may open it after the release, and finds its byte.
        self._release = os.open(folder / "workers" / "release", os.O_RDWR)
        ports = [free_port() for _ in range(shape.endpoints)]
        command = [
            str(launcher.path),
            *shape.arguments(launcher, ports),
            str(WORKER),
            str(folder / "workers"),
            mode,
            *([shape.imports] if shape.imports else []),
        ]
        commands = [command] * shape.agents
        if shape.lone_master:
            commands.append([str(launcher.path), "master", "--bind", f"127.0.0.1:{ports[0]}"])
        environ = environment() | {MARK: self.mark, "TMPDIR": str(folder / "tmp")}
        if shape.token:
            environ["FT_RUN_TOKEN"] = shape.token
        with self._output.open("ab") as output, self._errors.open("ab") as errors:
            self.result = JobResult(time.time_ns())
            self.agents = [
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environ
                )
                for command in commands
            ]

    def lines(self) -> list[Line]:
        """Return what workers have written so far."""
        return parse_lines(self._output.read_text(errors="replace"))

    def told_ns(self) -> list[int]:
        """Return when waiting workers were told to end, in the order in which they said so."""
        words = map(str.split, self._output.read_text(errors="replace").splitlines())
        return [int(line[2]) for line in words if line[:1] == ["told"] and len(line) == 3]

    def wait_for_lines(self, count: int, timeout_s: float) -> list[Line]:
        """Return the lines of workers as soon as there are that many, or when time is over."""
        deadline = time.monotonic() + timeout_s
        while len(lines := self.lines()) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return lines

    def release(self) -> None:
        """Let workers of mode ``wait`` end."""
        os.write(self._release, bytes(self._shape.world_size))

    def finish(
        self, attempts: int, timeout_s: float, killed: "subprocess.Popen[bytes] | None" = None
    ) -> JobResult:
        """Wait for the end, check how it went, and return it.

        Args:
            attempts: how many times all workers must have been started.
            timeout_s: what runs longer is a problem, and is killed.
            killed: the agent that was killed on purpose.
        """
        result = self.result
        deadline = time.monotonic() + timeout_s
        for agent in self.agents:
            status, cpu_s = _wait(agent, deadline)
            if agent is not killed:
                result.statuses.append(status)
            result.cpu_s += cpu_s
        result.wall_s = (time.time_ns() - result.started_ns) / 1e9
        result.lines = self.lines()
        with suppress(OSError, ValueError):
            result.death_ns = int((self._folder / "workers" / "death").read_text())
        if any(result.statuses):
            result.problems.append(f"exit statuses {result.statuses}")
        result.problems += check_lines(result.lines, self._launcher, self._shape, attempts)
        left = _await_gone(self.mark)
        if left:
            result.problems.append(f"processes left behind: {left}")
        if result.problems:
            result.log = self._errors.read_text(errors="replace")[-4000:]
        return result

    def kill(self) -> None:
        """End whatever is left, process by process; nothing can be done with the job then."""
        os.close(self._release)
        for _ in range(3):  # what is killed may just have started something
            for pid in marked(self.mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for agent in self.agents:
            if agent.returncode is None:
                agent.wait()


@contextmanager
def running_job(launcher: Launcher, shape: Shape, mode: str) -> Iterator[Job]:
    """Start all agents of a job at once; at the end nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="ft-run-bench-") as folder:
        job = Job(launcher, shape, mode, Path(folder))
        try:
            yield job
        finally:
            job.kill()


def _wait(process: "subprocess.Popen[bytes]", deadline: float) -> tuple[int, float]:
    """Return exit status and CPU seconds; kill at the deadline (of the monotonic clock)."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            process.kill()
    finally:
        os.close(pidfd)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _await_gone(mark: str, clock: Callable[[], float] = time.monotonic) -> list[int]:
    deadline = clock() + _GONE_S
    while (left := marked(mark)) and clock() < deadline:
        time.sleep(0.02)
    return sorted(left)


def bare_start_s(workers: int) -> float:
    """Return how long that many workers take to their first line without any launcher.

    No launcher can start or restart them in less.
    """
    ranks = {"WORLD_SIZE": str(workers), "TORCHELASTIC_RESTART_COUNT": "0"}
    with tempfile.TemporaryDirectory(prefix="ft-run-bench-") as folder:
        started_ns = time.time_ns()
        processes = [
            subprocess.Popen(
                [sys.executable, "-u", str(WORKER), folder, "exit"],
                stdout=subprocess.PIPE,
                env=environment() | ranks | {"RANK": str(rank)},
                text=True,
            )
            for rank in range(workers)
        ]
        lines = [line for process in processes for line in parse_lines(process.communicate()[0])]
    if len(lines) != workers:
        raise RuntimeError(f"{len(lines)} of {workers} workers started")
    return (max(line.time_ns for line in lines) - started_ns) / 1e9


def environment() -> dict[str, str]:
    """Return this process's environment without what would change what is measured.

    Byte code is cached, as it is for every package that was installed: where that is forbidden,
    a launcher installed in editable mode would be compiled anew at each start.
    """
    changing = ("PET_", "TORCHELASTIC_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(changing)}


def free_port() -> int:
    """Return a TCP port of the loopback on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
