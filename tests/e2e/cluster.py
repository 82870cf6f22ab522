"""A job on several hosts, for the tests of faults: agents by host, workers that wait at a gate."""

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ft_run.tests.harness.hosts import Host, Network

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

PORT = 29400

# GATE opened: all end. GATE.doneR: rank R ends. GATE.failR: rank R fails, once. A worker that
# is stopped leaves GATE.lastPID, as a checkpoint would be; GATE.slow, GATE.slowR: it ends when that
# file is gone.
WORKER = """
import os, signal, sys, time
gate, rank, restart = sys.argv[1], os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
def wait_until(condition):
    while not condition():
        time.sleep(0.01)
def stop(*_):
    open(f"{gate}.last{os.getpid()}", "w").close()
    wait_until(lambda: not any(map(os.path.exists, (f"{gate}.slow", f"{gate}.slow{rank}"))))
    sys.exit(1)
def ends():
    if os.path.exists(f"{gate}.fail{rank}"):
        os.unlink(f"{gate}.fail{rank}")
        sys.exit(3)
    return os.path.exists(gate) or os.path.exists(f"{gate}.done{rank}")
signal.signal(signal.SIGTERM, stop)
print("up", os.getpid())
wait_until(ends)
"""

_STARTED = (
    r"round={round} node_rank=(\d+) started ranks=(\S+) of (\d+) on (\d+) node\(s\) pids=(\d+)"
    r" store=(\S+)"
)


@dataclass(frozen=True, slots=True)
class Started:
    """What an agent said of the start of its worker in a round."""

    node_rank: int
    rank: int
    nodes: int
    pid: int
    store: str


class Cluster:
    """Hosts, and a job of which one agent with one worker runs in each."""

    def __init__(
        self,
        ft: "Launcher",
        network: Network,
        names: str,
        *options: object,
        master: str = "a",
        conf: str = "",
        host_name: str = "",
    ) -> None:
        """Make the hosts; nothing is started.

        Args:
            ft: starts the commands.
            network: where the hosts are made.
            names: of the hosts, one letter each.
            options: of every agent.
            master: the host, or its other name, in the endpoint; empty: the options have it.
            conf: more of ``--rdzv-conf``.
            host_name: what all hosts call themselves; each by its own name where it is empty.
        """
        self.ft = ft
        self.network = network
        self.hosts: dict[str, Host] = {
            name: network.add(name, host_name=host_name) for name in names
        }
        self.gate = ft.folder / "gate"
        self.agents: dict[str, Command] = {}
        """The last agent that was started in each host."""
        self._script = ft.script(WORKER, "worker.py")
        self._options = (
            *(("--rdzv-endpoint", f"{master}:{PORT}") if master else ()),
            "--rdzv-id", "faults", "--max-restarts", 9,
            *(("--rdzv-conf", conf) if conf else ()), *options,
        )  # fmt: skip

    # --- processes ---------------------------------------------------------------------------

    def agent(self, name: str, *more: object) -> "Command":
        """Start an agent in a host; its last one must have ended."""
        self.agents[name] = self.ft.start(
            *self._options, *more, self._script, self.gate, host=self.hosts[name]
        )
        return self.agents[name]

    def start(self, names: str) -> dict[str, Started]:
        """Start an agent in each of these hosts, and wait for round 0 in all of them."""
        for name in names:
            self.agent(name)
        return self.started(names, 0)

    def master(self, name: str, *options: object) -> "Command":
        """Start a master alone in a host, and wait until it listens."""
        command = self.ft.start("master", "--bind", f":{PORT}", *options, host=self.hosts[name])
        command.expect("listening at")
        return command

    def kill_agent(self, name: str) -> None:
        """SIGKILL the agent of a host, and wait until nothing of it runs there."""
        self.agents[name].send(signal.SIGKILL)
        self.agents[name].wait()
        pids = self.hosts[name].pids
        self.ft.wait_until(lambda: not pids(), f"nothing is left in host {name}")

    def expect(self, names: str, pattern: str) -> None:
        """Wait until the agents of hosts have said something."""
        for name in names:
            self.agents[name].expect(pattern)

    # --- workers -----------------------------------------------------------------------------

    def started(self, names: str, round_number: int) -> dict[str, Started]:
        """Wait until the workers of a round run in hosts; return what their agents say."""
        found = {}
        for name in names:
            pattern = _STARTED.format(round=round_number)
            (match, *_) = self.agents[name].expect(pattern)
            node_rank, rank, _, nodes, pid = map(int, match.groups()[:5])
            self.agents[name].expect(rf"^up {pid}$")
            found[name] = Started(node_rank, rank, nodes, pid, match[6])
        assert len({started.store for started in found.values()}) == 1
        return found

    def told(self, kind: str, rank: int | None = None) -> Path:
        """Tell workers to do something: create and return a file beside the gate."""
        path = Path(f"{self.gate}.{kind}{'' if rank is None else rank}")
        path.touch()
        return path

    def are_alive(self, *of: Started) -> bool:
        """Return whether these very workers run."""
        return {started.pid for started in of} <= set(self.ft.processes())

    def was_asked_to_stop(self, started: Started) -> bool:
        """Return whether this very worker got SIGTERM, and could write a checkpoint."""
        return Path(f"{self.gate}.last{started.pid}").exists()

    def ends(self, names: str, status: int = 0) -> None:
        """Open the gate; the agents of these hosts must end with a status."""
        self.gate.touch()
        assert {name: self.agents[name].wait() for name in names} == dict.fromkeys(names, status)

    def rounds(self, name: str) -> list[int]:
        """Return the rounds whose workers an agent has started."""
        return [int(n) for n in re.findall(r"round=(\d+) node_rank=\d+ started", self._said(name))]

    def _said(self, name: str) -> str:
        return self.agents[name].stderr

    def is_attached(self, name: str) -> bool:
        """Return whether the master has a stream to the node of a host."""
        return any(node["attached"] for node in self._nodes() if node["host"] == name)

    def is_done(self, name: str) -> bool:
        """Return whether the master has heard that the workers of a host have succeeded."""
        return any(node["phase"] == "done" for node in self._nodes() if node["host"] == name)

    def _nodes(self) -> list[dict[str, Any]]:
        command = self.ft.run("status", f"a:{PORT}", "--json", host=self.hosts["a"])
        nodes: list[dict[str, Any]] = json.loads(command.stdout)["nodes"]
        return nodes

    # --- time --------------------------------------------------------------------------------

    def noticed(self, what: str, since: float, names: str, pattern: str) -> None:
        """Wait until the agents of hosts say something; tell how long it took to be noticed.

        Args:
            what: the fault, for people.
            since: when it happened, ``time.monotonic()``.
            names: the hosts.
            pattern: what they say.
        """
        self.expect(names, pattern)
        self.ft.measured(f"{what}: noticed by {', '.join(names)}", since)
