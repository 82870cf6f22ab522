"""torchrun and ft-run behind one interface, so that the same test can be run with either."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ft_run.tests.e2e.conftest import FT_RUN, TIMEOUT_S, Command
from ft_run.tests.e2e.conftest import Launcher as Driver
from ft_run.tests.harness import ports

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
_IMAGE = Path(__file__).with_name("torchrun_image.py")
_ENTER = """
while [ "$1" ]; do mount --bind "$2" "$1"; shift 2; done
[ -z "$2" ] || hostname "$2"
[ -z "$3" ] || ip link set lo up
shift 3
exec "$@"
"""

if TYPE_CHECKING:
    Popen = subprocess.Popen[str]


@dataclass(frozen=True)
class Surroundings:
    """What a launcher finds when it starts, besides its environment."""

    hostname: str = ""
    """A host name of its own (a UTS namespace); needs root."""
    network: bool = False
    """A network of its own, with a loopback device only; needs root."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """What is in the place of a folder of the machine: one of the launcher's; needs root."""
    ignored: tuple[int, ...] = ()
    """Signals that are ignored, as SIGHUP is under nohup."""
    prelude: Mapping[str, str] = field(default_factory=dict)
    """Python code, by launcher, that runs in the launcher's process first: fakes a machine."""


class Launcher(Driver):
    """A launcher under test; its folder, its temporary files and its processes are its own."""

    name = ""
    gives_up_s = TIMEOUT_S
    """How long a test waits for what this launcher is expected to do."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder)
        self.port = ports.free_port()
        """A port for the endpoint of its job."""
        self.given: Mapping[str, str] = {}
        """The environment of its latest agent."""

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment that agents of this test get."""
        env = super().environment(extra)
        del env["GRPC_VERBOSITY"]  # for the tests' own use of gRPC
        env["PWD"] = str(self.folder)  # as any shell has it
        return env

    def launch(
        self,
        *args: object,
        env: Mapping[str, str] | None = None,
        surroundings: Surroundings | None = None,
        stdin: str = os.devnull,
    ) -> Command:
        """Start the launcher with arguments; return at once."""
        self.given = self.environment(env)
        command = self._launch(
            [*map(str, args)], dict(self.given), surroundings or Surroundings(), stdin
        )
        self.commands.append(command)
        return command

    def _launch(
        self, args: Sequence[str], env: dict[str, str], surroundings: Surroundings, stdin: str
    ) -> Command:
        program = [*self.program]
        if self.name in surroundings.prelude:
            program = [sys.executable, str(self._prelude(surroundings)), *program]
        if surroundings.hostname or surroundings.network or surroundings.mounts:
            program = [*self._entered(surroundings), *program]
        with open(stdin) as source, _ignoring(surroundings.ignored):
            process = subprocess.Popen(
                [*program, *args],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=env,
                cwd=self.folder,
            )
        return Command(process)

    def _entered(self, surroundings: Surroundings) -> list[str]:
        """Return the start of a command line that runs the rest in namespaces of its own."""
        hostname, network = surroundings.hostname, surroundings.network
        spaces = ["--uts"] * bool(hostname) + ["--net"] * network
        spaces += ["--mount"] * bool(surroundings.mounts)
        mounts = [
            word
            for target, source in surroundings.mounts.items()
            for word in (target, str(self.folder / source))
        ]
        return [
            *("unshare", *spaces, "sh", "-euc", _ENTER, "sh"),
            *(*mounts, "", hostname, "1" if network else ""),
        ]

    def _prelude(self, surroundings: Surroundings) -> Path:
        """Write a program that runs the prelude and then the program it is given."""
        path = self.folder / "prelude.py"
        path.write_text(
            surroundings.prelude[self.name]
            + "\nimport runpy, sys\ndel sys.argv[0]\nrunpy.run_path(sys.argv[0], {}, '__main__')\n"
        )
        return path

    def clean_up(self) -> None:
        """End what is left, however badly the launcher has behaved."""
        for command in self.commands:
            if command.process.poll() is None:
                command.process.kill()
        # A worker may be started while its launcher is being killed.
        while left := self.processes():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            threading.Event().wait(0.01)
        for command in self.commands:
            command.process.wait(TIMEOUT_S)


class FtRun(Launcher):
    """The installed ``ft-run``."""

    name = "ft-run"
    program = (FT_RUN,)


class TorchrunProgram(Launcher):
    """The installed ``torchrun``, as a user starts it."""

    name = "torchrun"
    program = (TORCHRUN,)


class Torchrun(Launcher):
    """torchrun, forked from an image that has imported it."""

    name = "torchrun"
    gives_up_s = 5.0
    """Long enough for whatever torchrun does by polling ten times a second."""

    def __init__(self, folder: Path, image: "TorchrunImage") -> None:
        super().__init__(folder)
        self._fork_server = image

    def again(self, folder: Path) -> "Torchrun":
        """Return another one, with a folder of its own."""
        return Torchrun(folder, self._fork_server)

    def _launch(
        self, args: Sequence[str], env: dict[str, str], surroundings: Surroundings, stdin: str
    ) -> Command:
        prelude = ""
        if self.name in surroundings.prelude:
            path = self.folder / "prelude.py"
            path.write_text(surroundings.prelude[self.name])
            prelude = str(path)
        request = {
            "argv": [TORCHRUN, *args],
            "env": env,
            "cwd": str(self.folder),
            "ignored": surroundings.ignored,
            "hostname": surroundings.hostname,
            "network": surroundings.network,
            "mounts": {
                target: str(self.folder / source) for target, source in surroundings.mounts.items()
            },
            "prelude": prelude,
        }
        # It has what a Command uses of a Popen.
        return Command(cast("Popen", self._fork_server.fork(request, stdin)))


class Forked:
    """A process forked by the image: the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, stdout: int, stderr: int) -> None:
        self.stdout = open(stdout, errors="replace")  # noqa: SIM115 - a Command closes it
        self.stderr = open(stderr, errors="replace")  # noqa: SIM115 - and this
        self.pid = 0
        self.returncode: int | None = None
        self._changed = threading.Condition()

    def heard(self, answer: Mapping[str, int]) -> None:
        """Take note of what the image says about this process."""
        with self._changed:
            self.pid = answer["pid"]
            self.returncode = answer.get("status")
            self._changed.notify_all()

    def started(self) -> None:
        """Wait until the process exists."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.pid, TIMEOUT_S):
                raise TimeoutError("the image of torchrun does not answer")

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._changed:
            if not self._changed.wait_for(lambda: self.returncode is not None, timeout):
                raise subprocess.TimeoutExpired("torchrun", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class TorchrunImage:
    """The process of ``torchrun_image.py``; it ends with this object, or with this process."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # NumPy's OpenBLAS would start a thread for each further CPU: no process to fork from.
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(_IMAGE), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=env,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._forked: dict[int, Forked] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def fork(self, request: Mapping[str, object], stdin: str) -> Forked:
        """Start a torchrun: ``argv env cwd ignored hostname network mounts prelude``."""
        number = len(self._forked)
        out_from, out_to = os.pipe()
        err_from, err_to = os.pipe()
        with open(stdin) as source:
            forked = self._forked[number] = Forked(out_from, err_from)
            message = json.dumps({"id": number, **request}).encode()
            socket.send_fds(self._channel, [message], [source.fileno(), out_to, err_to])
        os.close(out_to)
        os.close(err_to)
        forked.started()
        return forked

    def close(self) -> None:
        """End it, and all that it has forked and that still runs."""
        self._channel.shutdown(socket.SHUT_WR)
        self._process.wait(TIMEOUT_S)
        self._channel.close()

    def _read(self) -> None:
        while data := self._channel.recv(1 << 16):
            answer: dict[str, Any] = json.loads(data)
            self._forked[answer["id"]].heard(answer)


@contextmanager
def _ignoring(numbers: Sequence[int]) -> Iterator[None]:
    """Let a process that is started meanwhile ignore signals; pytest's own come a moment later."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
