"""What a person sees, on a real pseudo-terminal that is read by a small terminal emulator."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.tests.harness import family

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

TIMEOUT_S = 60.0

_TOKEN = re.compile(
    r"\x1b\[(?P<args>[0-9;?]*)(?P<csi>[@-~])|\x1b(?P<esc>[78D])|(?P<control>[\r\n\x07\x08])"
    r"|(?P<text>[^\x00-\x1f]+)"
)


class Screen:
    """As much of a VT100 as ft-run needs. Anything else that it is sent fails the test."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.lines = [""] * rows
        self.row = self.column = 0
        self.saved = (0, 0)
        self.region = (0, rows - 1)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size, anchored at the bottom as terminals with a history do it."""
        lost = max(0, self.row + 1 - rows)
        lines = self.lines[lost : lost + rows]
        self.lines = lines + [""] * (rows - len(lines))
        self.row -= lost
        self.rows, self.columns, self.region = rows, columns, (0, rows - 1)

    def feed(self, data: str) -> str:
        """Take output; return what is not yet a whole sequence."""
        position = 0
        while position < len(data):
            match = _TOKEN.match(data, position)
            if match is None:
                rest = data[position:]
                assert re.match(r"\x1b.{,20}$", rest), f"unknown sequence {rest[:20]!r}"
                return rest
            position = match.end()
            if match["text"]:
                self._put(match["text"])
            elif match["control"]:
                self._control(match["control"])
            elif match["esc"]:
                self._escape(match["esc"])
            else:
                self._csi(match["csi"], match["args"])
        return ""

    def _put(self, text: str) -> None:
        for char in text:
            if self.column == self.columns:
                self.column = 0
                self._down()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _control(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self._down()

    def _escape(self, char: str) -> None:
        if char == "7":
            self.saved = (self.row, self.column)
        elif char == "8":
            self.row, self.column = self.saved
        else:
            self._down()

    def _csi(self, final: str, args: str) -> None:
        numbers = [int(n) for n in args.split(";") if n]
        if final == "r":
            top, bottom = numbers or (1, self.rows)
            self.region, self.row, self.column = (top - 1, bottom - 1), 0, 0
        elif final == "H":
            row, column = numbers or (1, 1)
            self.row, self.column = min(row, self.rows) - 1, min(column, self.columns) - 1
        elif final == "A":
            self.row = max(0, self.row - (numbers[0] if numbers else 1))
        elif final == "K":
            assert numbers == [2]
            self.lines[self.row] = ""
        else:
            assert final == "m", f"unknown sequence {args}{final!r}"

    def _down(self) -> None:
        top, bottom = self.region
        if self.row == bottom:
            self.lines[top : bottom + 1] = [*self.lines[top + 1 : bottom + 1], ""]
        elif self.row < self.rows - 1:
            self.row += 1


class Terminal:
    """A command of a shell on a terminal of its own."""

    SHELL = 'trap : INT; "$@"; echo "status=$?"; read line'
    IN_BACKGROUND = 'set -m; "$@" & wait $!; echo "status=$?"; read line'

    def __init__(
        self,
        ft: "Launcher",
        *args: object,
        rows: int = 16,
        columns: int = 100,
        env: dict[str, str] | None = None,
        shell: str = SHELL,
    ) -> None:
        self._master, slave = pty.openpty()
        self.screen = Screen(rows, columns)
        self.raw = b""
        self._changed = threading.Condition()
        self._set_size(rows, columns)
        self.shell = subprocess.Popen(
            ["setsid", "-c", "sh", "-c", shell, "sh", *ft.program, *map(str, args)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=ft.environment({"TERM": "xterm", **(env or {})}),
            cwd=ft.folder,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        rest = ""
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                data = b""
            with self._changed:
                if not data:
                    return
                self.raw += data
                rest = self.screen.feed(rest + decoder.decode(data))
                self._changed.notify_all()

    @property
    def agent(self) -> int:
        """The process id of ft-run."""
        pid = self.shell.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        with self._changed:
            self.screen.resize(rows, columns)
            self._set_size(rows, columns)

    def expect(self, condition: Callable[[Screen], bool], what: str) -> list[str]:
        """Wait until the screen is as it should be; return its lines."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.screen), TIMEOUT_S):
                shown = "\n".join(self.screen.lines)
                pytest.fail(f"the screen never showed {what}:\n{shown}\n--- raw\n{self.raw!r}")
            return list(self.screen.lines)

    def expect_text(self, pattern: str) -> list[str]:
        return self.expect(lambda s: re.search(pattern, "\n".join(s.lines)) is not None, pattern)

    def expect_live(self, pattern: str = "^ft-run ") -> list[str]:
        """Wait for a live line in the last row, below the rows that scroll.

        A terminal that changes its size lets all rows scroll: a line that is there then is an
        old one, which the agent has not drawn for the new size.
        """
        return self.expect(
            lambda screen: (
                screen.region == (0, screen.rows - 2)
                and re.search(pattern, screen.lines[-1]) is not None
            ),
            f"{pattern} in the last row",
        )

    def close(self) -> None:
        self.shell.kill()
        self.shell.wait()
        self._reader.join(TIMEOUT_S)
        os.close(self._master)


WORKER = """
import os, sys, time
folder, shown = sys.argv[1], 0
print("worker", os.environ["RANK"], "is up", flush=True)
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
    stage.end()
    lines = terminal.expect_text("status=0")
    assert no_live_line(lines)
    assert "job succeeded" in lines[lines.index("status=0") - 1]


def test_progress_bars_stay_whole(stage: Stage) -> None:
    terminal = stage.open()
    terminal.expect_live(LIVE)
    stage.print_lines(30)
    terminal.expect_text("line 29")
    stage.progress()
    terminal.expect_text("(?m)^progress 100%$")
    assert sum("progress" in line for line in terminal.screen.lines) == 1
    stage.end()
    terminal.expect_text("status=0")


@pytest.mark.parametrize(("rows", "columns"), [(10, 40), (40, 200)])
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


@pytest.mark.parametrize("name", ["dumb", ""])
def test_a_dumb_terminal_gets_no_escape_codes(stage: Stage, name: str) -> None:
    terminal = stage.open(env={"TERM": name})
    terminal.expect_text("worker 0 is up")
    terminal.type("\x03")
    terminal.expect_text("status=130")
    assert b"\x1b" not in terminal.raw


def test_no_color(stage: Stage) -> None:
    terminal = stage.open(env={"NO_COLOR": "1"})
    terminal.expect_live(LIVE)
    terminal.type("\x03")
    terminal.expect_text("status=130")
    assert not COLOUR.search(terminal.raw)


def test_the_live_line_says_which_nodes_are_missing(stage: Stage, free_port: int) -> None:
    terminal = stage.open(
        "--nnodes", 2, "--node-rank", 0, "--rdzv-id", "a\x1b[31mjob", "--rdzv-endpoint",
        f"127.0.0.1:{free_port}",
    )  # fmt: skip
    terminal.expect_live(r"^ft-run a\\x1b\[31mjob · 1/2 nodes · missing --node-rank 1 · up ")
    terminal.type("\x03")
    terminal.expect_text("status=130")


def test_into_a_file_there_are_no_escape_codes(ft: "Launcher") -> None:
    script = ft.script("raise SystemExit(3)\n")
    command = ft.run(
        "--standalone", "--max-restarts", 1, "--rdzv-id", "a\x1b[31m\njob", script,
        env={"TERM": "xterm"},
    )  # fmt: skip
    assert command.process.returncode == 1
    assert "\x1b" not in command.stderr
    events = [line for line in command.stderr.splitlines() if " ft-run " in line]
    assert all(re.match(r"\d\d:\d\d:\d\d ft-run ", event) for event in events)
    assert sum("job=a\\x1b[31m\\njob " in event for event in events) == 1
    for what in ("started", "exited with 3"):
        told = [event for event in events if what in event and "round=" in event]
        assert re.search(r"round=0 node_rank=0", told[0])


def test_the_progress_of_a_check_and_ctrl_c(ft):
    terminal = Terminal(ft, "check", env={"FT_RUN_CHECK_FAULT": "hang"})
    try:
        terminal.expect_live(r"^ft-run check \S+ · solo · [0-9]+ s left *$")
        terminal.type("\x03")
        lines = terminal.expect_text(r"status=130")
        assert lines[-1] == "", "the terminal's last line was not given back"
        assert sum("check: received SIGINT, exiting" in line for line in lines) == 1
    finally:
        terminal.close()
    assert not ft.processes()
