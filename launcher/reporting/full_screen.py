"""The terminal of ``ft-run status --watch``: the alternate screen, of which only changes are drawn.

Whatever ends the watch, the terminal is as before: the modes of stty, the cursor, the screen.
"""

import os
import sys
import termios
import tty
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_CLEAR: Final = "\x1b[2J"


class Painter:
    """Turns the lines of a screen into the output that changes the last one into it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._drawn: list[str] = []

    def forget(self) -> None:
        """Draw all lines next time."""
        self._drawn = []

    def paint(self, lines: Sequence[Text]) -> str:
        """Return the output; empty: nothing has changed."""
        texts = [self._styled(line) for line in lines]
        before, self._drawn = self._drawn, texts
        if len(before) != len(texts):
            before = []
        output = "" if before else _CLEAR
        for row, text in enumerate(texts):
            if not before or before[row] != text:
                output += f"\x1b[{row + 1};1H\x1b[2K{text}"
        return output

    def _styled(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", no_wrap=True, overflow="ignore", crop=False)
        return capture.get()


class FullScreen:
    """Standard output as a full screen, and single keys of standard input."""

    def __init__(self) -> None:
        """Change nothing yet."""
        self._painter = Painter(Console(file=sys.stdout, highlight=False, markup=False))
        self._modes: list[Any] | None = None
        """Of standard input before; None: it is no terminal."""
        self.is_shown = False

    @property
    def has_keys(self) -> bool:
        """Whether standard input is the terminal."""
        return os.isatty(0)

    def enter(self) -> None:
        """Show the screen; keys arrive one by one and are not echoed."""
        if self.has_keys:
            self._modes = termios.tcgetattr(0)
            tty.setcbreak(0, termios.TCSADRAIN)
        self.is_shown = True
        self._painter.forget()
        self._write(_ENTER)

    def leave(self) -> None:
        """Show what was there before."""
        if not self.is_shown:
            return
        self.is_shown = False
        self._write(_LEAVE)
        if self._modes is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw what has changed."""
        if self.is_shown:
            self._write(self._painter.paint(lines))

    def redraw(self) -> None:
        """Draw all lines next time: the size has changed."""
        self._painter.forget()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return max(20, size.columns or 80), max(6, size.lines or 24)

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
