"""A job of several agents under either launcher, for claims about how it behaves."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from ft_run.tests.conformance.launchers import Launcher, Surroundings
from ft_run.tests.e2e.conftest import TIMEOUT_S

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command

_WORKER = r"""
import json, os, signal, sys, time
folder, node = sys.argv[1], os.environ["NODE"]
told = []
def ignore(number, frame):
    told.append(number)
    open(f"{folder}/told {len(told)}", "x").close()
if os.environ.get("IGNORES_SIGTERM"):
    signal.signal(signal.SIGTERM, ignore)
names = ("NODE", "RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_RESTART_COUNT")
path = f"{folder}/starts/{time.monotonic_ns():020}"
with open(path + "~", "w") as file:
    json.dump([*(os.environ[name] for name in names), os.getpid()], file)
os.rename(path + "~", path)
if os.environ.get("SLEEPS_IN_THE_KERNEL") and os.environ["RANK"] == "0":
    # The child waits for a writer of the pipe before it executes, and this process, by vfork(2),
    # for the child: in uninterruptible sleep, until a signal ends it.
    os.mkfifo(f"{folder}/pipe")
    action = (os.POSIX_SPAWN_OPEN, 0, f"{folder}/pipe", os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[action])
while not os.path.exists(f"{folder}/end"):
    try:
        os.unlink(f"{folder}/fail-{node}")
    except FileNotFoundError:
        time.sleep(0.01)
    else:
        sys.exit(3)
"""


class Start(NamedTuple):
    """One start of a worker, as it saw itself."""

    node: str
    rank: str
    group_rank: str
    world_size: str
    master_addr: str
    master_port: str
    restarts: str
    pid: int

    @property
    def is_alive(self) -> bool:
        """Whether the worker is still there, and no zombie."""
        return self.state not in ("", "Z", "X")

    @property
    def state(self) -> str:
        """The state of its process, as ``ps`` has it; empty when it is gone."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ""
        return text.rpartition(")")[2].split()[0]


class Job:
    """Agents named ``a``, ``b``…; their workers do what ``fail`` and ``end`` say."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.folder = launcher.folder
        (self.folder / "starts").mkdir()
        self._script = launcher.script(_WORKER)

    def agent(
        self,
        node: str,
        args: str,
        env: Mapping[str, str] | None = None,
        surroundings: Surroundings | None = None,
        hosts: bool | None = None,
    ) -> "Command":
        """Start one agent of a job with one endpoint.

        Args:
            node: the name of the agent.
            args: what it is given besides the endpoint.
            env: what is set in its environment.
            surroundings: the host it finds itself on.
            hosts: whether it hosts the rendezvous; None lets the launcher decide.
        """
        conf = "" if hosts is None else f"is_host={int(hosts)},"
        given = [word.replace("CONF:", conf) for word in args.split()]
        if hosts is not None and not any(conf in word for word in given):
            given += ["--rdzv-conf", conf.rstrip(",")]
        if "--master-addr" not in args and "--standalone" not in args:
            where = f"localhost:{self.launcher.port}"
            given += ["--rdzv-backend", "c10d", "--rdzv-endpoint", where, "--rdzv-id", "job"]
        return self.launcher.launch(
            *given,
            self._script,
            self.folder,
            env={"NODE": node, "OMP_NUM_THREADS": "1", **(env or {})},
            surroundings=surroundings,
        )

    def starts(self, node: str = "") -> list[Start]:
        """Return the starts of all workers (of one node) so far, in order."""
        paths = sorted(p for p in (self.folder / "starts").iterdir() if not p.name.endswith("~"))
        found = (Start(*json.loads(path.read_text())) for path in paths)
        return [start for start in found if node in ("", start.node)]

    def last(self, node: str) -> Start:
        """Return the latest start on a node."""
        return self.starts(node)[-1]

    def fail(self, node: str) -> None:
        """Let a worker of ``node`` exit with 3."""
        (self.folder / f"fail-{node}").touch()

    def end(self) -> None:
        """Let all workers exit with 0."""
        (self.folder / "end").touch()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for what both launchers do: without it the claim cannot be examined."""
        if not _wait(condition, TIMEOUT_S):
            output = "\n".join(command.stderr for command in self.launcher.commands)
            pytest.fail(f"{self.launcher.name}: not {what}\n{self.starts()}\n{output}")

    def soon(self, condition: Callable[[], object]) -> bool:
        """Return whether the condition comes true before one gives up on this launcher."""
        return _wait(condition, self.launcher.gives_up_s)

    def soon_exits(self, command: "Command") -> bool:
        """Return whether an agent ends before one gives up on this launcher."""
        return self.soon(lambda: has_ended(command))


def has_ended(command: "Command") -> bool:
    """Return whether an agent has ended."""
    return command.process.poll() is not None


def _wait(condition: Callable[[], object], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
