"""``ft-run status --watch`` on a real pseudo-terminal."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.launcher.agent.local_answers import LocalAnswers, Request
from ft_run.launcher.agent.local_socket import LocalSocket
from ft_run.launcher.reporting.status_answer import status_dict
from ft_run.rendezvous.protocol.status import NodeStatus, StatusReply
from ft_run.rendezvous.protocol.steps import RankSteps
from ft_run.tests.harness.terminal import Screen, Terminal

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

SHELL = (
    'trap : INT; stty -a > before; "$@"; echo "status=$?"; stty -a > after; echo done; read line'
)

WORKER = """
import pathlib, sys, threading
from ft_run.training import progress
step = 0
while not pathlib.Path(sys.argv[1]).exists():
    progress(step := step + 1)
    threading.Event().wait(0.05)
sys.exit(pathlib.Path(sys.argv[1] + ".fails").exists())
"""


def is_as_before(terminal: Terminal) -> bool:
    """Return whether the terminal is as before the watch, which has ended."""
    lines = terminal.expect_text("done")
    assert terminal.screen.has_cursor
    assert not terminal.screen.is_alternate
    assert not any("NODE" in line for line in lines)
    return (terminal.folder / "before").read_text() == (terminal.folder / "after").read_text()


class FakeAgent(LocalAnswers):
    """Speaks the protocol of the local socket, of a job that the test makes up."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._last: dict[str, Any] | None = None
        self.is_slow = threading.Event()
        self.reply = StatusReply(job_id, "running", 0, max_nodes=1000)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._socket = LocalSocket(lambda: self)
        self._call(self._socket.listen(f"fake-{job_id}"))
        self._go_on = asyncio.Event()

    def nodes(self, count: int, step: int) -> None:
        """Have so many nodes, all at a step."""
        nodes = tuple(
            NodeStatus(
                f"h{rank}/0", f"h{rank}", "10.0.0.1", "r", "running", rank, rank, 1, True,
                (RankSteps(rank, step, 2.0, 0.1),),
            )
            for rank in range(count)
        )  # fmt: skip
        self.reply = StatusReply(self.job_id, "running", 0, max_nodes=1000, nodes=nodes)

    def answers_again(self) -> None:
        self.is_slow.clear()
        self._loop.call_soon_threadsafe(self._go_on.set)

    def end(self, exit_code: int) -> None:
        """End the job: whoever watches is told."""
        reply = StatusReply(self.job_id, "finished", 0, exit_code=exit_code, ended="it is over")
        self._last = {"status": status_dict(reply)}
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close(self) -> None:
        await self._socket.say_last()
        self._socket.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks)

    async def answer(self, request: Request) -> dict[str, Any]:
        if request.ask == "job":
            return {"job": {"job_id": self.job_id, "hosts_master": True}}
        if self.is_slow.is_set():
            await self._go_on.wait()
        return {"status": status_dict(self.reply)}

    async def last(self) -> dict[str, Any] | None:
        return self._last

    def _call(self, what: Any) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(60)


Open = Callable[..., Terminal]


@pytest.fixture
def opened(ft: "Launcher") -> Iterator[Open]:
    """Returns a function that opens a terminal with ``ft-run status --watch``."""
    terminals: list[Terminal] = []

    def open_terminal(*arguments: object, **kinds: Any) -> Terminal:
        folder = ft.folder / f"terminal{len(terminals)}"
        folder.mkdir()
        words = ("status", *arguments, "--watch")
        terminals.append(Terminal(ft, *words, shell=SHELL, folder=folder, **kinds))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()


@pytest.fixture
def agent(ft: "Launcher") -> Iterator[FakeAgent]:
    agent = FakeAgent(f"fake-{ft.mark}")
    yield agent
    agent.close()


def test_a_thousand_nodes_that_come_and_go(opened: Open, agent: FakeAgent) -> None:
    agent.nodes(2, 7)
    terminal = opened(agent.job_id, rows=24, columns=80, env={"NO_COLOR": "1"})
    lines = terminal.expect_text("(?m)^1 +h1 +1 +running +7 +2 +0.1 s")
    assert terminal.screen.is_alternate
    assert not terminal.screen.has_cursor
    assert lines[0].startswith(f" job {agent.job_id} · running")
    agent.nodes(1000, 8)
    terminal.expect_text("(?m)^… 98[0-9] more nodes *$")
    terminal.resize(40, 160)
    terminal.expect_text("(?m)^… 96[0-9] more nodes *$")
    agent.nodes(1, 9)
    terminal.expect(
        lambda screen: "h0 " in str(screen.lines) and "h1 " not in str(screen.lines), "one node"
    )
    agent.is_slow.set()
    terminal.expect_text("no answer for [0-9]+ s")
    agent.answers_again()
    terminal.expect(lambda screen: "answer" not in screen.lines[0], "the time again")
    agent.end(1)
    terminal.expect_text("FAILED: it is over")
    terminal.expect_text("status=1")


def test_a_killed_agent_ends_the_watch(opened: Open, agent: FakeAgent) -> None:
    agent.nodes(1, 7)
    terminal = opened(agent.job_id)
    terminal.expect_text("h0 ")
    agent.close()
    terminal.expect_text("its ft-run has ended without a result")
    terminal.expect_text("status=1")
    assert is_as_before(terminal)


def run_until_closed(command: list[str], *, has_keys: bool) -> tuple[int, str]:
    """Run a command in a terminal that is closed after its first output; return how it ended."""
    master, slave = os.openpty()
    with subprocess.Popen(
        command,
        stdin=slave if has_keys else subprocess.PIPE,
        stdout=slave,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm", "PYTHONUNBUFFERED": ""},
    ) as shown:
        os.close(slave)
        assert os.read(master, 1)
        os.close(master)
        _, errors = shown.communicate(timeout=60)
    return shown.returncode, errors.decode()


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_terminal_that_is_closed_ends_the_watch(agent: FakeAgent, *, has_keys: bool) -> None:
    agent.nodes(1, 7)
    command = [str(Path(sys.executable).with_name("ft-run")), "status", agent.job_id, "--watch"]
    assert run_until_closed(command, has_keys=has_keys) == (0, "")


@pytest.mark.parametrize("action", ["leave", "enter"])
def test_nothing_is_left_to_write_to_a_terminal_that_is_closed(action: str) -> None:
    """Python would try it at the end, and exit with 120."""
    program = (
        "import sys; from ft_run.launcher.reporting.full_screen import FullScreen; "
        f"screen = FullScreen(); screen.enter(); sys.stdin.read(); screen.{action}()"
    )
    assert run_until_closed([sys.executable, "-c", program], has_keys=False) == (0, "")


def test_a_job_of_two_nodes_until_it_succeeds(ft: "Launcher", opened: Open, free_port: int) -> None:
    endpoint, gate = f"127.0.0.1:{free_port}", ft.folder / "gate"
    job = (
        "--nnodes", 2, "--rdzv-id", f"w-{ft.mark}", "--rdzv-endpoint", endpoint,
        "--watch-workers", ft.script(WORKER), gate,
    )  # fmt: skip
    agents = ft.start_two(*job)

    def trains(screen: Screen) -> bool:
        rows = [line.split() for line in screen.lines if line[:2] in ("0 ", "1 ")]
        return len(rows) == 2 and all(row[3] == "running" and row[4] != "-" for row in rows)

    until_end, by_job = opened(endpoint), opened(f"w-{ft.mark}")
    for terminal in (until_end, by_job):
        terminal.expect(trains, "two nodes with steps")
    by_job.type("q")
    by_job.expect_text("status=0")
    assert is_as_before(by_job)
    interrupted = opened(endpoint)
    interrupted.expect(trains, "two nodes with steps")
    agents[0].send(signal.SIGSTOP)
    interrupted.expect_text("no answer for [0-9]+ s")
    agents[0].send(signal.SIGCONT)
    interrupted.expect(lambda s: "answer" not in s.lines[0] and trains(s), "the job again")
    interrupted.type("\x03")
    interrupted.expect_text("status=130")
    assert is_as_before(interrupted)
    gate.touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    until_end.expect_text("succeeded: all workers succeeded")
    until_end.expect_text("last step seen: [0-9]+")
    until_end.expect_text("status=0")
    assert is_as_before(until_end)


def test_without_a_terminal_it_is_refused(ft: "Launcher") -> None:
    refused = ft.run("status", "--watch")
    assert refused.process.returncode == 2
    assert refused.stderr == (
        "ft-run: error: --watch needs a terminal on standard output; expected ft-run status"
        " without it, or ft-run status --json for programs.\n"
    )
