"""What a person sees, on a real pseudo-terminal that is read by a small terminal emulator."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.tests.harness import family
from ft_run.tests.harness.terminal import Terminal

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

WORKER = """
import os, sys, time
folder, shown = sys.argv[1], 0
os.write(1, f"worker {os.environ['RANK']} is up\\n".encode())
while not os.path.exists(f"{folder}/end"):
    wanted = len([name for name in os.listdir(folder) if name.startswith("line")])
    while shown < wanted:
        print("line", shown, flush=True)
        shown += 1
    if os.path.exists(f"{folder}/progress"):
        os.unlink(f"{folder}/progress")
        for percent in range(101):
            sys.stderr.write(f"\\rprogress {percent}%")
            sys.stderr.flush()
    time.sleep(0.01)
"""


class Stage:
    """A worker that does what the test says."""

    def __init__(self, ft: "Launcher") -> None:
        self.ft = ft
        self.folder = ft.folder / "stage"
        self.folder.mkdir()
        self.script = ft.script(WORKER)
        self.terminals: list[Terminal] = []
        self.lines = 0

    def open(self, *options: object, **kinds: Any) -> Terminal:
        logs = ("--log-dir", self.ft.folder / "logs")  # a temporary one stays after a failure
        arguments = (*(options or ("--standalone",)), *logs, self.script, self.folder)
        terminal = Terminal(self.ft, *arguments, **kinds)
        self.terminals.append(terminal)
        return terminal

    def print_lines(self, count: int) -> None:
        for _ in range(count):
            (self.folder / f"line{self.lines}").touch()
            self.lines += 1

    def progress(self) -> None:
        (self.folder / "progress").touch()

    def end(self) -> None:
        (self.folder / "end").touch()


@pytest.fixture
def stage(ft: "Launcher") -> Iterator[Stage]:
    stage = Stage(ft)
    yield stage
    for terminal in stage.terminals:
        terminal.close()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
LIVE = r"^ft-run \w+ · 1/1 nodes · round 0 · restarts 0/0 · up 0:00:\d\d\s*$"


def no_live_line(lines: list[str]) -> bool:
    return not any(line.startswith("ft-run ") for line in lines)


def test_the_live_line_stays_below_what_workers_write(stage: Stage) -> None:
    terminal = stage.open()
    terminal.expect_text("worker 0 is up")
    terminal.expect_live(LIVE)
    stage.print_lines(50)
    lines = terminal.expect_text("line 49")
    assert lines[-3:-1] == ["line 49", ""] or lines[-2] == "line 49"
    assert re.match(LIVE, lines[-1])
    last = int(re.findall(r"up 0:00:(\d\d)", lines[-1])[0])
    terminal.expect(
        lambda screen: int(re.findall(r"up 0:00:(\d\d)", screen.lines[-1])[0]) > last,
        "a later time",
    )
    assert sum(line.startswith("ft-run ") for line in terminal.screen.lines) == 1
    stage.progress()
    terminal.expect_text("(?m)^progress 100%$")
    assert sum("progress" in line for line in terminal.screen.lines) == 1
    stage.end()
    lines = terminal.expect_text("status=0")
    assert no_live_line(lines)
    assert "job succeeded" in lines[lines.index("status=0") - 1]


@pytest.mark.parametrize(
    ("rows", "columns"), [(10, 40), pytest.param(40, 200, marks=pytest.mark.slow)]
)
def test_the_live_line_follows_the_size_of_the_terminal(
    stage: Stage, rows: int, columns: int
) -> None:
    terminal = stage.open(env={"LINES": "16", "COLUMNS": "100"})  # set by some shells, for good
    terminal.expect_live()
    stage.print_lines(40)
    terminal.expect_text("line 39")
    terminal.resize(rows, columns)
    lines = terminal.expect_live()
    assert len(lines) == rows
    assert len(lines[-1].rstrip()) < columns
    stage.print_lines(60)
    terminal.expect_text("line 99")  # the live line comes back after it
    lines = terminal.expect_live()
    assert lines[-1].startswith("ft-run ")
    assert [line for line in lines if line.startswith("line")][-1] == "line 99"
    stage.end()
    assert no_live_line(terminal.expect_text("status=0")[-2:])


def test_what_workers_write_while_the_terminal_is_resized_does_not_stay_in_its_last_row(
    stage: Stage,
) -> None:
    """A new size lets all rows scroll: workers reach the last one before the agent draws."""
    terminal = stage.open()
    terminal.expect_live(LIVE)
    stage.print_lines(20)
    terminal.expect_text("line 19")
    with stopped(terminal.agent):
        terminal.resize(16, 60)
        stage.print_lines(5)
        terminal.expect(lambda screen: screen.lines[-2:] == ["line 24", ""], "all rows used")
    terminal.expect_live()
    stage.print_lines(20)
    terminal.expect_text("line 44")
    lines = terminal.expect_live()
    assert [line for line in lines if line.startswith("line")][-3:] == [
        "line 42",
        "line 43",
        "line 44",
    ]
    stage.end()
    terminal.expect_text("status=0")


def test_a_tiny_terminal_has_no_live_line_until_it_grows(stage: Stage) -> None:
    terminal = stage.open(rows=4, columns=80)
    terminal.expect_text("worker 0 is up")
    assert b"\x1b[1;" not in terminal.raw
    terminal.resize(20, 80)
    terminal.expect_live(LIVE)
    terminal.resize(4, 80)
    stage.print_lines(20)
    terminal.expect(lambda screen: screen.lines[-2:] == ["line 19", ""], "all rows used")
    stage.end()
    terminal.expect_text("status=0")


def test_ctrl_c_gives_the_terminal_back(stage: Stage) -> None:
    terminal = stage.open()
    terminal.expect_live(LIVE)
    terminal.type("\x03")
    lines = terminal.expect_text("status=130")
    assert no_live_line(lines)
    told = [line for line in lines if " ft-run " in line and "received" in line]
    assert len(told) == 1
    assert "received SIGINT: stopping 1 worker(s) and leaving the job" in told[0]
    assert COLOUR.search(terminal.raw)
    assert terminal.screen.region == (0, 15)


@pytest.mark.parametrize("spawner", ["runs", "was stopped"])
def test_a_killed_agent_gives_the_terminal_back(stage: Stage, spawner: str) -> None:
    terminal = stage.open()
    terminal.expect_live(LIVE)
    terminal.resize(12, 100)
    terminal.expect_live(LIVE)
    if spawner == "was stopped":  # the guard lets it go on: the words for the end are its own
        os.kill(family.spawner_of(terminal.agent), signal.SIGSTOP)
    os.kill(terminal.agent, signal.SIGKILL)
    terminal.expect_text("status=137")
    terminal.expect(lambda s: s.region == (0, 11) and no_live_line(s.lines), "a free terminal")


def test_ctrl_z_gives_the_terminal_back_until_the_job_is_continued(stage: Stage) -> None:
    terminal = stage.open(shell='set -m; trap : INT; "$@"; echo "stopped=$?"; fg; read line')
    terminal.expect_live(LIVE)
    terminal.type("\x1a")
    terminal.expect_text(r"stopped=\d+")
    terminal.expect_live(LIVE)  # fg
    stage.end()
    assert no_live_line(terminal.expect_text("job succeeded"))
    between = terminal.raw.partition(b"stopped=")[0]
    assert between.rindex(b"\x1b[r") > between.rindex(b"\x1b[1;15r")


def test_a_held_terminal_does_not_hold_the_job(
    ft: "Launcher", stage: Stage, free_port: int
) -> None:
    # Ctrl-S stops the output of a terminal: the agent must wait neither to show the time nor to
    # say what happens, or the other nodes would wait for it.
    common = ("--nnodes", 2, "--rdzv-id", ft.mark, "--rdzv-endpoint", f"127.0.0.1:{free_port}",
              "--max-restarts", 1)  # fmt: skip
    terminal = stage.open(*common, "--node-rank", 0)
    terminal.expect_live()
    script = ft.script(
        "import os, sys, time\n"
        "restart = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('up', restart, flush=True)\n"
        "if restart == '0':\n"
        "    while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "    time.sleep(2.5)\n"  # the live line is drawn every second
        "    sys.exit(1)\n",
        "other.py",
    )
    other = ft.start(*common, "--node-rank", 1, script, ft.folder / "gate")
    other.expect("up 0")
    terminal.type("\x13")
    (ft.folder / "gate").touch()
    other.expect("up 1")
    terminal.type("\x11")
    terminal.expect_text("restart 1/1: rank 1 on node 1 .* exited with 1")
    stage.end()
    terminal.expect_text("status=0")
    assert other.wait() == 0


def test_a_background_job_has_no_live_line(stage: Stage) -> None:
    terminal = stage.open(shell=Terminal.IN_BACKGROUND)
    terminal.expect_text("worker 0 is up")
    stage.print_lines(20)
    terminal.expect_text("line 19")
    stage.end()
    terminal.expect_text("status=0")
    assert b"\x1b" not in terminal.raw


def test_a_dumb_terminal_gets_no_escape_codes(stage: Stage) -> None:
    terminal = stage.open(env={"TERM": "dumb"})
    terminal.expect_text("worker 0 is up")
    terminal.type("\x03")
    terminal.expect_text("status=130")
    assert b"\x1b" not in terminal.raw


def test_the_live_line_says_which_nodes_are_missing(stage: Stage, free_port: int) -> None:
    terminal = stage.open(
        "--nnodes", 2, "--node-rank", 0, "--rdzv-id", "a\x1b[31mjob", "--rdzv-endpoint",
        f"127.0.0.1:{free_port}", env={"NO_COLOR": "1"},
    )  # fmt: skip
    terminal.expect_live(r"^ft-run a\\x1b\[31mjob · 1/2 nodes · missing --node-rank 1 · up ")
    terminal.type("\x03")
    terminal.expect_text("status=130")
    assert not COLOUR.search(terminal.raw)


def test_the_progress_of_a_check_and_ctrl_c(ft):
    terminal = Terminal(ft, "check", env={"FT_RUN_CHECK_FAULT": "hang"})
    try:
        terminal.expect_live(r"^ft-run check · checks solo: .* · up [0-9:]+ *$")
        terminal.type("\x03")
        lines = terminal.expect_text(r"status=130")
        assert lines[-1] == "", "the terminal's last line was not given back"
        assert sum("received SIGINT" in line for line in lines) == 1
    finally:
        terminal.close()
    assert not ft.processes()
