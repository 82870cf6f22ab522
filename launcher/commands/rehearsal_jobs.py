"""Runs the jobs of a rehearsal, and reads the records of their workers."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..cli.rehearse_flags import RehearseOptions
from ..processes.prctl import die_with_parent
from .rehearsal_comparison import Record

_END_S: Final = 60.0
_POLL_S: Final = 0.05


class Run(Struct, frozen=True):
    """The result of the jobs of one row."""

    exit_code: int
    """Exit code of the last job."""
    records: list[Record]
    """Records of all workers, by time."""
    output: str


class Jobs:
    """Starts the jobs of a script, one after the other."""

    def __init__(self, options: RehearseOptions, folder: Path) -> None:
        self._options, self._folder = options, folder
        self.modules: Sequence[str] = ()
        """Modules that the script imports; workers of later jobs are forked with these loaded."""
        self.checkpoints: list[str] = []
        """Size and duration of each checkpoint that was written, for display."""
        self._agents: list[subprocess.Popen[bytes]] = []

    def run(self, row: str, order: Record, workers: Sequence[int | None] = (None,)) -> Run:
        """Run the jobs of a row, until one ends with exit code 0.

        ``order`` tells workers when to fail and when to leave; after ``kill_after_s`` a worker is
        killed. ``workers`` has the number of workers of each job; None for the number in the
        options.
        """
        path = self._folder / row
        path.mkdir()
        (path / "order.json").write_text(json.dumps(order))
        restarts = len(order["failures"]) + ("kill_after_s" in order)
        words = ["--hang-timeout=auto", "--hang-timeout-start=5m", f"--log-dir={path}/logs"]
        words += [f"--preload={','.join(self.modules)}"] if self.modules else []
        words += [*self._options.job, f"--max-restarts={restarts}", f"--events={path}/events.jsonl"]
        for count in workers:
            own = [f"--nproc-per-node={count}"] if count is not None else []
            agents = self._start_agents(path, [*words, *own])
            if "kill_after_s" in order:
                time.sleep(order["kill_after_s"])
                while not any(_events(path, "workers.started")) and agents[0].poll() is None:
                    time.sleep(_POLL_S)
                for event in _events(path, "workers.started"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(event["pids"][-1], signal.SIGKILL)
            codes = [abs(agent.wait()) for agent in agents]
            self.end()
            code = max((one for one in codes if one != signal.SIGKILL), default=signal.SIGKILL)
            if not code:
                break
        lines = (path / "output").read_text(errors="replace").splitlines()
        records = sorted(_lines(path, "rank*.jsonl"), key=lambda record: record["time_s"])
        for event in _events(path, "checkpoint.written"):
            size, time_s = f"{event['bytes'] / 1e6:.3g} MB", f"{event['seconds']:.2g} s"
            self.checkpoints.append(f"{size} in {time_s}")
        return Run(code, records, "\n".join(lines[-20:]))

    def _start_agents(self, path: Path, words: Sequence[str]) -> "list[subprocess.Popen[bytes]]":
        count, place = int(self._options.nodes), ["--standalone"]
        if count > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
            self._start(["master", f"--bind={endpoint}"], path)
            place = [f"--rdzv-endpoint={endpoint}", "--local-addr=127.0.0.1"]
        words = [*words, *place, f"--nnodes={count}", "--rdzv-id=rehearsal", *self._options.script]
        spares = int(path.name == "node")
        agents = [self._start(words, path) for _ in range(count + spares)]
        (path / "agents").write_text(" ".join(str(agent.pid) for agent in agents))
        return agents

    def _start(self, words: Sequence[str], path: Path) -> "subprocess.Popen[bytes]":
        own, parent = os.path.abspath(sys.argv[0]), os.getpid()
        program = [own] if os.path.basename(own) == "ft-run" else [sys.executable, "-m", "ft_run"]
        with (path / "output").open("ab") as output:
            agent = subprocess.Popen(
                [*program, *words],
                env={**os.environ, "FT_RUN_REHEARSAL": str(path)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C ends the rehearsal, which ends the agents
                preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
            )
        self._agents.append(agent)
        return agent

    def end(self) -> None:
        """End the agents that still run; they stop their workers."""
        for agent in self._agents:
            agent.send_signal(signal.SIGINT)
            agent.terminate()  # the second signal: nothing is saved
        for agent in self._agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(_END_S)
            agent.kill()
        self._agents.clear()


def _events(path: Path, name: str) -> Iterator[Record]:
    return (event for event in _lines(path, "events*.jsonl") if event["name"] == name)


def _lines(path: Path, pattern: str) -> Iterator[Record]:
    for file in path.glob(pattern):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a killed process may leave an incomplete line
                yield json.loads(line)
