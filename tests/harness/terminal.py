"""A pseudo-terminal that is read by a small terminal emulator, for what a person sees."""

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
        self.has_cursor, self.is_alternate = True, False
        self._before = (self.lines, 0, 0)
        """Lines and cursor of the screen below the alternate one."""

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
        if args.startswith("?"):
            self._mode(args[1:], is_on=final == "h")
            return
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
        elif final == "J":
            assert numbers == [2]
            self.lines = [""] * self.rows
        else:
            assert final == "m", f"unknown sequence {args}{final!r}"

    def _mode(self, number: str, *, is_on: bool) -> None:
        if number == "25":
            self.has_cursor = is_on
            return
        assert number == "1049", f"unknown mode {number}"
        assert is_on is not self.is_alternate
        if is_on:
            self._before = (self.lines, self.row, self.column)
            self.lines = [""] * self.rows
        else:
            self.lines, self.row, self.column = self._before
        self.is_alternate = is_on

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
        folder: Path | None = None,
    ) -> None:
        self.folder = folder or ft.folder
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
            cwd=self.folder,
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
