"""torchrun and ft-run behind one interface, so that the same test can be run with either."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ft_run.tests.e2e.conftest import FT_RUN, TIMEOUT_S, Command
from ft_run.tests.e2e.conftest import Launcher as Driver
from ft_run.tests.harness import ports

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
_ENTER = """
while [ "$1" ]; do mount --bind "$2" "$1"; shift 2; done
[ -z "$2" ] || hostname "$2"
[ -z "$3" ] || ip link set lo up
shift 3
exec "$@"
"""


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
        surroundings = surroundings or Surroundings()
        program = [*self.program]
        if self.name in surroundings.prelude:
            program = [sys.executable, str(self._prelude(surroundings)), *program]
        if surroundings.hostname or surroundings.network or surroundings.mounts:
            program = [*self._entered(surroundings), *program]
        with open(stdin) as source, _ignoring(surroundings.ignored):
            process = subprocess.Popen(
                [*program, *map(str, args)],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=self.given,
                cwd=self.folder,
            )
        command = Command(process)
        self.commands.append(command)
        return command

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


class Torchrun(Launcher):
    """The installed ``torchrun``."""

    name = "torchrun"
    program = (TORCHRUN,)
    gives_up_s = 15.0
    """Long enough for its start, and for whatever it does by polling ten times a second."""


@contextmanager
def _ignoring(numbers: Sequence[int]) -> Iterator[None]:
    """Let a process that is started meanwhile ignore signals; pytest's own come a moment later."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
