"""Runs the jobs of a rehearsal, and reads the records of their workers."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...values import dataclass
from ..cli.rehearse_flags import rehearse_command
from ..flags.headings import RENDEZVOUS
from ..processes.prctl import die_with_parent
from ..rehearse_options import RehearseOptions

Record = dict[str, Any]
_REMARK: Final = "does not match the script"
_POLL_S: Final = 0.05
_END_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Run:
    """The result of the jobs of one row."""

    statuses: tuple[int, ...]
    """Exit codes of the jobs."""
    records: tuple[Record, ...]
    """Records of all workers, by time."""
    output: str
    """The last lines of the last job."""
    is_hung: bool = False
    remark: str = ""
    """What the last job said about snapshots that it could not use."""
    checkpoint: str = ""
    """Size and time of the last checkpoint, for display."""


class Jobs:
    """Starts the jobs of a script, one after the other."""

    def __init__(self, options: RehearseOptions, folder: Path) -> None:
        self._options, self._folder = options, folder
        self.limit_s = options.timeout_s
        """Time without a completed step after which a job has hung."""
        self.modules: tuple[str, ...] = ()
        """Modules that the script imports, to fork the workers of later jobs from them."""
        variables = {
            variable
            for flag in rehearse_command().flags
            for variable in flag.variables
            if flag.group == RENDEZVOUS.name
        }
        self._environ = {key: text for key, text in os.environ.items() if key not in variables}
        self._agents: list[subprocess.Popen[bytes]] = []
        self._pids: set[int] = set()

    def run(
        self,
        name: str,
        order: Mapping[str, Any],
        workers: Sequence[int | None] = (None,),
        *,
        spares: int = 0,
    ) -> Run:
        """Run the jobs of a row.

        Args:
            name: of the row.
            order: for the workers: when to fail and when to leave.
            workers: number of workers of each job; None: as given.
            spares: number of further agents.
        """
        path = self._folder / name
        path.mkdir()
        (path / "order.json").write_text(json.dumps(order))
        restarts = int(bool(order["failures"]))  # others are failures of the script
        statuses = []
        is_hung = False
        for count in workers:
            for mark in path.glob("left-*"):
                mark.unlink()
            with (path / "output").open("wb") as output:
                status, is_hung = self._run_job(path, output, count, spares, restarts)
            statuses.append(status)
            if is_hung or not status:
                break
        lines = (path / "output").read_text(errors="replace").splitlines()
        remarks = [line for line in lines if _REMARK in line]
        return Run(
            tuple(statuses),
            read_records(path),
            "\n".join(lines[-20:]),
            is_hung,
            remarks[0].partition("ft-run ")[2] if remarks else "",
            _checkpoint(path),
        )

    def _run_job(
        self, path: Path, output: Any, count: int | None, spares: int, restarts: int
    ) -> tuple[int, bool]:
        """Run one job; return its exit code, and whether it hung."""
        options = self._options
        arguments = [*options.job, f"--max-restarts={restarts}", f"--events={path}/events.jsonl"]
        if not any(word.startswith("--preload") for word in options.job):
            arguments.append(f"--preload={','.join(self.modules) or 'auto'}")
        if not any(word.startswith("--log-dir") for word in options.job):
            arguments.append(f"--log-dir={path}/logs")
        if count is not None:
            arguments.append(f"--nproc-per-node={count}")
        if options.nodes == 1:
            arguments += ["--standalone", "--rdzv-id=rehearsal"]
        else:
            endpoint = f"127.0.0.1:{_free_port()}"
            self._start(["master", f"--bind={endpoint}"], path, output)
            arguments += [f"--nnodes={options.nodes}", f"--rdzv-endpoint={endpoint}"]
            arguments += ["--rdzv-id=rehearsal", "--local-addr=127.0.0.1"]
        try:
            agents = [
                self._start([*arguments, *options.script], path, output)
                for _ in range(options.nodes + spares if options.nodes > 1 else 1)
            ]
            (path / "agents").write_text(" ".join(str(agent.pid) for agent in agents))
            is_hung = self._wait(agents, path)
            found = [agent.returncode for agent in agents]
            killed = [status for status in found if status != -signal.SIGKILL]
            return max(map(abs, killed), default=signal.SIGKILL), is_hung
        finally:
            self.end(path)

    def _start(
        self, arguments: Sequence[str], path: Path, output: Any
    ) -> "subprocess.Popen[bytes]":
        own, parent = os.path.abspath(sys.argv[0]), os.getpid()
        program = [own] if os.path.basename(own) == "ft-run" else [sys.executable, "-m", "ft_run"]
        agent = subprocess.Popen(
            [*program, *arguments],
            env={**self._environ, "FT_RUN_REHEARSAL": str(path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends the rehearsal, which ends the agents
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )
        self._agents.append(agent)
        return agent

    def _wait(self, agents: "Sequence[subprocess.Popen[bytes]]", path: Path) -> bool:
        """Wait until agents have ended; return whether the limit was reached."""
        written, since = 0, time.monotonic()
        while any(agent.poll() is None for agent in agents):
            size = sum(file.stat().st_size for file in path.glob("rank*"))
            if size != written:
                written, since = size, time.monotonic()
            if time.monotonic() - since > self.limit_s:
                self.end(path)
                return True
            time.sleep(_POLL_S)
        return False

    def end(self, path: Path | None = None) -> None:
        """End the agents that still run, and wait until their workers are gone."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + _END_S
            for agent in self._agents:
                if agent.poll() is None:
                    agent.send_signal(sign)
            for agent in self._agents:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.wait(max(0.0, until - time.monotonic()))
        self._agents.clear()
        pids = {record["pid"] for record in read_records(path)} if path is not None else set()
        until = time.monotonic() + _END_S
        while time.monotonic() < until and any(os.path.exists(f"/proc/{pid}") for pid in pids):
            time.sleep(_POLL_S)


def read_records(path: Path) -> tuple[Record, ...]:
    """Return the complete records of all workers of a row, by time."""
    found: list[Record] = []
    for file in path.glob("rank*.jsonl"):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a killed worker has not written all of it
                found.append(json.loads(line))
    return tuple(sorted(found, key=lambda record: record["time_s"]))


def _checkpoint(path: Path) -> str:
    found = ""
    for file in path.glob("events*.jsonl"):
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event.get("name") == "checkpoint.written":
                found = f"checkpoint {event['bytes'] / 1e6:.3g} MB in {event['seconds']:.2g} s"
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
