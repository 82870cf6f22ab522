"""Driving the installed ``ft-run`` as a user would, with a leak check after every test.

Nothing here sleeps to wait for a condition: output is awaited line by line, exits by ``wait``.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import pytest
from ft_run.tests.harness import hosts, ports
from ft_run.tests.harness.hosts import Host, Network

FT_RUN = str(Path(sys.executable).with_name("ft-run"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_S = 120.0
"""Bounds every wait: a broken product must not hang the suite. No test asserts on speed."""

_MARK = "FT_RUN_TEST_ID"


class Command:
    """One running command with both of its outputs captured as they come."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._changed = threading.Condition()
        self._lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._open = 2
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert stream is not None
            threading.Thread(target=self._read, args=(name, stream), daemon=True).start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        """What has come on standard output so far."""
        with self._changed:
            return "".join(self._lines["stdout"])

    @property
    def stderr(self) -> str:
        """What has come on standard error so far."""
        with self._changed:
            return "".join(self._lines["stderr"])

    def expect(
        self, pattern: str, count: int = 1, timeout_s: float | None = None
    ) -> list[re.Match[str]]:
        """Wait until ``count`` lines of either output match; return the matches."""
        found: list[re.Match[str]] = []

        def enough() -> bool:
            lines = self._lines["stdout"] + self._lines["stderr"]
            found[:] = [match for line in lines if (match := re.search(pattern, line))]
            return len(found) >= count or not self._open

        with self._changed:
            self._changed.wait_for(enough, timeout_s or TIMEOUT_S)
        if len(found) < count:
            pytest.fail(
                f"{len(found)} of {count} lines match {pattern!r}\n"
                f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
            )
        return found

    def wait(self) -> int:
        """Wait for the exit and for the end of the outputs; return the exit code."""
        try:
            status = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(
                f"still running after {TIMEOUT_S} s\n"
                f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
            )
        with self._changed:
            self._changed.wait_for(lambda: not self._open, 5.0)
        return status

    def send(self, number: int) -> None:
        """Send a signal to the command itself."""
        self.process.send_signal(number)

    def _read(self, name: str, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self._lines[name].append(line)
                    self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()


def processes_marked(mark: str) -> dict[int, str]:
    """Return pid and command line of living processes whose environment holds the mark."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}".encode() not in (entry / "environ").read_bytes():
                continue
            if (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                continue
            found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class Launcher:
    """Starts commands for one test and knows every process that descends from them."""

    program = (FT_RUN,)

    def __init__(
        self, folder: Path, record: Callable[[str, object], None] = lambda name, value: None
    ) -> None:
        """Make the folder for temporary files.

        Args:
            folder: the test's own.
            record: pytest's ``record_property``, where something is measured.
        """
        self.folder = folder
        self._record = record
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.mark = uuid.uuid4().hex
        self.commands: list[Command] = []

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment that commands of this test get."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC"))}
        env.update({_MARK: self.mark, "TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"})
        env["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "inductor")
        # Two threads of a small product wait for each other where other tests run beside.
        env["OMP_NUM_THREADS"] = "1"
        env.update(extra or {})
        return env

    def start(
        self,
        *args: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        program: Sequence[str] = (FT_RUN,),
        new_session: bool = False,
        host: Host | None = None,
    ) -> Command:
        """Start ``ft-run`` (or ``program``) with arguments, in a host or here; return at once."""
        process = subprocess.Popen(
            [*(host.enter if host is not None else ()), *program, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=self.environment(env),
            cwd=cwd or self.folder,
            start_new_session=new_session,
        )
        command = Command(process)
        self.commands.append(command)
        return command

    def start_two(self, *args: object) -> tuple[Command, Command]:
        """Start two nodes of a job here, one after the other: the first hosts the master."""
        host = self.start(*args)
        host.expect("hosted here")
        return host, self.start(*args)

    def run(self, *args: object, **options: Any) -> Command:
        """Start a command and wait for its end; its status is ``process.returncode``."""
        command = self.start(*args, **options)
        command.wait()
        return command

    def script(self, text: str, name: str = "script.py") -> Path:
        """Write a training script."""
        path = self.folder / name
        path.write_text(text)
        return path

    def processes(self) -> dict[int, str]:
        """Return pid and command line of every living process of this test."""
        return processes_marked(self.mark)

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Wait for a state of the machine that nothing announces (a process that is gone)."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {timeout_s} s: {what}; running: {self.processes()}")
            threading.Event().wait(0.01)

    def measured(self, what: str, since: float) -> None:
        """Tell how long something took, at the end of the test run.

        Args:
            what: for people, as in "agent killed: noticed by a, b".
            since: when it began, ``time.monotonic()``.
        """
        self._record("detection time", f"{what} after {time.monotonic() - since:.2f} s")

    def finish(self) -> None:
        """End what still runs; no process and no temporary file of the test may be left."""
        for command in self.commands:
            if command.process.poll() is None:
                command.send(signal.SIGKILL)
                command.process.wait()
        self.wait_until(lambda: not self.processes(), "all processes of the test have ended")
        left = [str(path.relative_to(self.temporary)) for path in self.temporary.iterdir()]
        if all(command.process.returncode == 0 for command in self.commands):
            assert not left, f"temporary files were left: {left}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, Any, Any]:
    """Show what each command of a failed test has said: a rare failure cannot be run again."""
    report = yield
    launcher = cast("Launcher | None", item.funcargs.get("ft"))
    if report.when == "call" and report.failed and launcher is not None:
        for command in launcher.commands:
            title = f"{command.process.args!r}: {command.process.poll()}"
            report.sections.append((f"{title}, stdout", command.stdout))
            report.sections.append((f"{title}, stderr", command.stderr))
    return report


@pytest.fixture(autouse=True, scope="session")
def default_signals() -> Iterator[None]:
    """Nothing is ignored, although a suite under ``nohup`` or in a shell's background would be.

    What is ignored at its start stays ignored in ft-run, which these tests are not about.
    """
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def ft(tmp_path: Path, record_property: Callable[[str, object], None]) -> Iterator[Launcher]:
    """A launcher; afterwards no process and no temporary file of the test may be left."""
    launcher = Launcher(tmp_path, record_property)
    yield launcher
    launcher.finish()


@pytest.fixture
def network(ft: Launcher) -> Iterator[Network]:
    """A network, yet without hosts; afterwards no process of the test may be left in any."""
    reason = hosts.unavailable()
    if reason is not None:
        pytest.skip(reason)
    with Network() as network:
        yield network
        for host in network.hosts.values():
            host.thaw()
        ft.finish()  # while the hosts are there: their end would hide what was left


@pytest.fixture
def free_port() -> int:
    """A TCP port on which nothing listens."""
    return ports.free_port()


@pytest.fixture
def memory_limit(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    """The beginning of a command that is to run in a memory cgroup (v1, v2).

    It has 256 MiB, or as many as the parameter says.
    """
    if os.geteuid() != 0:
        pytest.skip("memory cgroups need root")
    root = Path("/sys/fs/cgroup")
    is_v1 = (root / "memory/memory.limit_in_bytes").exists()
    name = f"ft-run-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    path = root / "memory" / name if is_v1 else root / name
    path.mkdir()
    limits = [path / "memory.limit_in_bytes", path / "memory.max", path / "memory.swap.max"]
    found = [limit for limit in limits if limit.exists()]
    for limit in found:
        limit.write_text(str(getattr(request, "param", 256) << 20))
    if found:
        yield ("sh", "-c", f'echo $$ > {path}/cgroup.procs && exec "$@"', "sh")
    path.rmdir()
    if not found:
        pytest.skip("there is no memory controller here")
