"""What a person sees: one line per event and, on a terminal, a live line at the bottom.

The workers write to the same terminal themselves, at any time. So the live line is kept outside
of where they write: the terminal scrolls all but its last line (DECSTBM, as apt does it), and
each redraw is a single write that saves and restores the cursor. Nothing of theirs is garbled,
and to them the terminal is still a terminal.
"""

import logging
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Final

_LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
}
_MIN_ROWS: Final = 6

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_CLEAR_LINE = "\x1b[2K"
_RESET_SCROLLING = "\x1b[r"


class Display:
    """Writes event lines to standard error, and the live line where that is a terminal."""

    def __init__(self, *, live: bool | None = None) -> None:
        """Create a display.

        Args:
            live: whether to keep a live line; None: on a terminal that this process is in the
                foreground of.
        """
        self._level = _LEVELS.get(os.environ.get("LOGLEVEL", "INFO").upper(), logging.INFO)
        self._live = _can_be_live() if live is None else live
        self._colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        self._rows = 0
        self._status = ""

    @property
    def live(self) -> bool:
        """Whether there is a live line."""
        return self._live

    def event(self, text: str, level: int = logging.INFO) -> None:
        """Write one line for one event, if the level (``LOGLEVEL``) allows it."""
        if level < self._level:
            return
        line = f"{time.strftime('%H:%M:%S')} ft-run {text}"
        if self._colour and level >= logging.WARNING:
            line = f"\x1b[{31 if level >= logging.ERROR else 33}m{line}\x1b[0m"
        _write(line + "\n")

    def report(self, text: str) -> None:
        """Write a text of several lines as it is."""
        _write(text if text.endswith("\n") else text + "\n")

    def open(self) -> None:
        """Set the live line's row aside."""
        if self._live:
            signal.signal(signal.SIGWINCH, self._resized)
            self._set_aside()

    def status(self, text: str) -> None:
        """Redraw the live line with this text."""
        self._status = text
        if self._live and self._rows:
            self._draw()

    @property
    def last_words(self) -> str:
        """What gives the terminal back, should this process be killed."""
        return self._give_back() if self._live and self._rows else ""

    def close(self) -> None:
        """Give the whole terminal back."""
        if self._live and self._rows:
            _write(self._give_back())
            self._rows = 0
        self._live = False

    def _set_aside(self) -> None:
        size = shutil.get_terminal_size()
        if size.lines < _MIN_ROWS:
            self._rows = 0
            return
        self._rows = size.lines
        # A line feed first: if the cursor is in the last row, that row scrolls up.
        _write(f"\n{_SAVE}\x1b[1;{self._rows - 1}r{_RESTORE}\x1b[1A")
        if self._status:
            self._draw()

    def _draw(self) -> None:
        columns = shutil.get_terminal_size().columns
        text = self._status[: columns - 1]
        if self._colour:
            text = f"\x1b[7m{text.ljust(columns - 1)}\x1b[0m"
        _write(f"{_SAVE}\x1b[{self._rows};1H{_CLEAR_LINE}{text}{_RESTORE}")

    def _give_back(self) -> str:
        return f"{_SAVE}\x1b[{self._rows};1H{_CLEAR_LINE}{_RESET_SCROLLING}{_RESTORE}"

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        if self._live:
            _write(f"{_SAVE}{_RESET_SCROLLING}{_RESTORE}")
            self._set_aside()


def _can_be_live() -> bool:
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb"):
        return False
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return False


def _write(text: str) -> None:
    """Write in one system call: that is what keeps lines of several processes whole."""
    data = text.encode(errors="backslashreplace")
    with suppress(BlockingIOError, BrokenPipeError, OSError):
        while data:
            data = data[os.write(2, data) :]
