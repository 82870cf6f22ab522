"""Runs one job under one launcher, checks its result, and leaves no process behind."""

import enum
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from procfs import MARK, marked

WORKER = Path(__file__).with_name("worker.py")
_GONE_S = 5.0
"""Time for the processes of a launcher to end after it has exited."""


class Launcher(enum.Enum):
    """A launcher; the value is its command, installed beside this interpreter."""

    TORCHRUN = "torchrun"
    FT_RUN = "ft-run"

    @property
    def path(self) -> Path:
        """Where the command is installed."""
        return Path(sys.executable).with_name(self.value)


@dataclass(frozen=True, slots=True)
class Shape:
    """Size and options of a job."""

    agents: int = 1
    workers: int = 2
    """Per agent."""
    spares: int = 0
    """Number of agents that are spares."""
    lone_master: bool = False
    """Run the master in its own process (ft-run only)."""
    nnodes: str = "1"
    max_restarts: int = 0
    rdzv_conf: str = ""
    imports: str = ""
    """A module that every worker imports before it writes its line; ft-run preloads it."""
    token: str = ""
    """The token of the job (ft-run only); empty: no TLS."""
    more: tuple[str, ...] = ()
    """Further options (ft-run only); ``{folder}`` in them is a folder of the job."""
    endpoints: int = 1
    """Number of endpoints (ft-run only), all on this host."""

    @property
    def world_size(self) -> int:
        """Number of workers that run at a time."""
        return (self.agents - self.spares) * self.workers

    def options(self, folder: Path) -> list[str]:
        """Return the further options of a job with this folder."""
        return [option.format(folder=folder) for option in self.more]

    def arguments(self, launcher: Launcher, ports: Sequence[int], folder: Path) -> list[str]:
        """Return the launcher's arguments, equal for both except for options of ft-run only."""
        given = ["--nproc-per-node", str(self.workers), "--max-restarts", str(self.max_restarts)]
        if self.imports and launcher is Launcher.FT_RUN:
            given += ["--preload", self.imports]
        if launcher is Launcher.FT_RUN:
            given += self.options(folder)
        if self.nnodes == "1":
            return ["--standalone", *given]
        given += ["--nnodes", self.nnodes, "--rdzv-id", "benchmark", "--rdzv-backend", "c10d"]
        given += ["--rdzv-endpoint", ",".join(f"127.0.0.1:{port}" for port in ports)]
        return [*given, "--rdzv-conf", self.rdzv_conf] if self.rdzv_conf else given


@dataclass(frozen=True, slots=True)
class Line:
    """The line that a worker writes when it starts."""

    attempt: int
    rank: int
    world_size: int
    restarts: int
    """Its TORCHELASTIC_RESTART_COUNT."""
    pid: int
    time_ns: int


@dataclass(slots=True)
class JobResult:
    """The result of one job."""

    started_ns: int
    lines: list[Line] = field(default_factory=list)
    death_ns: int | None = None
    statuses: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    log: str = ""

    def first_lines_s(self, attempt: int, since_ns: int) -> float:
        """Return the seconds from a time to the line of the last worker of an attempt."""
        return (max(ln.time_ns for ln in self.lines if ln.attempt == attempt) - since_ns) / 1e9


def parse_lines(text: str) -> list[Line]:
    """Return the lines of workers; other output is skipped."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 7 and words[0] == "bench" and all(map(str.isdecimal, words[1:])):
            found.append(Line(*map(int, words[1:])))
    return found


def check_lines(
    lines: Iterable[Line], launcher: Launcher, shape: Shape, attempts: int
) -> list[str]:
    """Return the problems in the lines of a job: missing, duplicate or wrong workers."""
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
    """A running job. Use ``running_job``."""

    def __init__(self, launcher: Launcher, shape: Shape, mode: str, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self._launcher, self._shape = launcher, shape
        self._folder = folder
        self._output = folder / "output"
        self._errors = folder / "errors"
        (folder / "tmp").mkdir()
        (folder / "workers").mkdir()
        os.mkfifo(folder / "workers" / "release")
        # Open for reading too: a worker that opens it after the release still finds its byte.
        self._release = os.open(folder / "workers" / "release", os.O_RDWR)
        ports = [free_port() for _ in range(shape.endpoints)]
        command = [
            str(launcher.path),
            *shape.arguments(launcher, ports, folder),
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
        """Return when waiting workers received SIGTERM, in the order of their output."""
        words = map(str.split, self._output.read_text(errors="replace").splitlines())
        return [int(line[2]) for line in words if line[:1] == ["told"] and len(line) == 3]

    def wait_for_lines(self, count: int, timeout_s: float) -> list[Line]:
        """Return the lines of workers as soon as there are ``count``, or after the time-out."""
        deadline = time.monotonic() + timeout_s
        while len(lines := self.lines()) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return lines

    def release(self) -> None:
        """End workers of mode ``wait``."""
        os.write(self._release, bytes(self._shape.world_size))

    def finish(
        self, attempts: int, timeout_s: float, killed: "subprocess.Popen[bytes] | None" = None
    ) -> JobResult:
        """Wait for the end of the job, check it, and return the result.

        Args:
            attempts: expected number of starts of all workers.
            timeout_s: an agent that runs longer is killed, which is a problem.
            killed: the agent that was killed intentionally.
        """
        result = self.result
        deadline = time.monotonic() + timeout_s
        for agent in self.agents:
            status = ended(agent, deadline)
            if agent is not killed:
                result.statuses.append(status)
        result.lines = self.lines()
        with suppress(OSError, ValueError):
            result.death_ns = int((self._folder / "workers" / "death").read_text())
        if any(result.statuses):
            result.problems.append(f"exit codes {result.statuses}")
        result.problems += check_lines(result.lines, self._launcher, self._shape, attempts)
        left = _await_gone(self.mark)
        if left:
            result.problems.append(f"processes left behind: {left}")
        if result.problems:
            result.log = self._errors.read_text(errors="replace")[-4000:]
        return result

    def kill(self) -> None:
        """Kill all remaining processes."""
        os.close(self._release)
        for _ in range(3):  # a killed process may just have started another
            for pid in marked(self.mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for agent in self.agents:
            if agent.returncode is None:
                agent.wait()


@contextmanager
def running_job(launcher: Launcher, shape: Shape, mode: str) -> Iterator[Job]:
    """Start all agents of a job at once; at the end, kill what remains."""
    with tempfile.TemporaryDirectory(prefix="ft-run-bench-") as folder:
        job = Job(launcher, shape, mode, Path(folder))
        try:
            yield job
        finally:
            job.kill()


def ended(process: "subprocess.Popen[bytes]", deadline: float) -> int:
    """Return the exit code of a process; kill it at the deadline (of the monotonic clock)."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _await_gone(mark: str) -> list[int]:
    deadline = time.monotonic() + _GONE_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(left)


def bare_start_s(workers: int) -> float:
    """Return the time of workers to their first line without a launcher: the baseline."""
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
    """Return this process's environment without variables that would distort measurements.

    E.g. PYTHONDONTWRITEBYTECODE: an editable install would be compiled at each start.
    """
    changing = ("PET_", "TORCHELASTIC_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(changing)}


def free_port() -> int:
    """Return a free TCP port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
