"""The console: one line per event and, on a terminal, a live line at the bottom.

The workers write to the same terminal at any time. The live line is therefore outside of their
scroll region: the terminal scrolls all lines except the last (DECSTBM, as in apt), and each redraw
is a single write that saves and restores the cursor. The workers' output is not garbled, and their
streams are still a terminal.
"""

import os
import re
import time
from collections.abc import Callable
from typing import Final

from ...events.event import Event, LogMessage, Severity
from ...printable import printable, printable_lines
from ..history.recorder import Recorder, line_of
from .line_writer import LineWriter

_LEVELS: Final = {**Severity.__members__, "CRITICAL": 50}
_STDERR: Final = 2
_MIN_ROWS: Final = 6
_MIN_COLUMNS: Final = 20

_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_MAKE_ROOM = "\x1bD\x1b[A"
"""Moves one line down, which scrolls in the last line, and up again; keeps the column."""
_BOTTOM = "\x1b[9999;1H"
"""Moves to the first column of the last row, for any number of rows."""
_CLEAR_LINE = "\x1b[2K"
_RESET_SCROLLING = "\x1b[r"
_GIVE_BACK = f"{_SAVE}{_RESET_SCROLLING}{_BOTTOM}{_CLEAR_LINE}{_RESTORE}"


class Display:
    """Writes event lines to standard error, and the live line if that is a terminal.

    ``live`` keeps a live line while this process is in the foreground; if None, on a terminal,
    unless the output is JSON or only warnings. ``level`` defaults to ``LOGLEVEL``. JSON needs a
    recorder, which also records events that the console does not show.
    """

    def __init__(
        self,
        *,
        live: bool | None = None,
        recorder: Recorder | None = None,
        level: Severity | None = None,
        is_json: bool = False,
    ) -> None:
        self.recorder = recorder
        self.is_json = is_json
        """Whether lines are records of events as JSON."""
        self.copy: Callable[[str], None] = lambda _: None
        """Receives each line and report of the console, without colors."""
        given = os.environ.get("LOGLEVEL", "INFO").upper()
        self._level = _LEVELS.get(given, Severity.INFO) if level is None else level
        understands = os.isatty(_STDERR) and os.environ.get("TERM", "dumb") not in ("", "dumb")
        understands &= not is_json
        self.colour = understands and not os.environ.get("NO_COLOR")
        """Whether colors may be used."""
        is_quiet = level is not None and level > Severity.INFO
        self.live = (understands and not is_quiet) if live is None else live
        """Whether there is a live line, or would be one in a larger terminal."""
        self._rows = 0
        """Rows of the terminal while its last one is reserved; 0 otherwise."""
        self._is_resized = False
        """Whether the terminal has a new size, for which no row is reserved yet."""
        self._status = ""
        self._writer = LineWriter()
        self._tell_last_words: Callable[[str], None] = lambda _: None

    def shows(self, severity: Severity) -> bool:
        """Return whether the console shows events of this severity (``LOGLEVEL``)."""
        return severity >= self._level

    @property
    def columns(self) -> int:
        """Current number of columns of the terminal; 80 if unknown."""
        return _size()[1] or 80

    def event(self, event: Event, severity: Severity | None = None) -> None:
        """Record an event, and show it."""
        self.record(event)
        self.show(event, severity)

    def record(self, event: Event) -> None:
        """Record an event for files, without showing it."""
        if self.recorder is not None:
            self.recorder.event(event)

    def show(self, event: Event, severity: Severity | None = None) -> None:
        """Write one line for one event, if the level allows it, without waiting for a reader."""
        severity = event.severity if severity is None else severity
        if not self.shows(severity):
            return
        if self.is_json:
            self._put_record(event, severity)
            return
        line = f"{time.strftime('%H:%M:%S')} ft-run {printable(str(event))}"
        self.copy(line + "\n")
        if self.colour and severity >= Severity.WARNING:
            line = f"\x1b[{31 if severity >= Severity.ERROR else 33}m{line}\x1b[0m"
        self._writer.put(line + "\n")

    def warn_unrecorded(self, name: str, reason: str) -> None:
        """Warn that lines of a file of events are being lost."""
        sentence = (
            f"cannot write to {name}: {reason}; the job continues, and lost lines are counted"
        )
        self.event(LogMessage(sentence, Severity.WARNING))

    def line(self, text: str) -> None:
        """Write a machine-readable line, without a time stamp and at any level."""
        self._writer.put(text + "\n")

    def report(self, text: str, *, is_styled: bool = False) -> None:
        """Write several lines, after an empty line: a stopped worker may have left part of a line.

        With ``is_styled``, the text has colors, and external text in it was already made printable.
        """
        if self.is_json:
            self._put_record(LogMessage(_STYLE.sub("", text).strip("\n")), Severity.INFO)
            return
        text = text if is_styled else printable_lines(text)
        whole = "\n" + (text if text.endswith("\n") else text + "\n")
        if not is_styled:
            self.copy(whole)
        self._writer.put(whole)

    def _put_record(self, event: Event, severity: Severity) -> None:
        assert self.recorder is not None
        record = {**self.recorder.record(event), "severity": severity.name.lower()}
        line = line_of(record).decode()
        self.copy(line)
        self._writer.put(line)

    def open(self, tell_last_words: Callable[[str], None]) -> None:
        """Reserve the row of the live line.

        ``tell_last_words`` receives the text that restores the terminal if this process is killed,
        whenever it changes.
        """
        self._tell_last_words = tell_last_words
        self.refresh()

    def status(self, text: str) -> None:
        """Redraw the live line with this text."""
        self._status = printable(text)
        self.refresh()

    def refresh(self) -> None:
        """Redraw in the terminal's current size, if this process is in the foreground."""
        self._writer.flush()
        if not self.live or not _in_foreground() or not self._writer.is_ready:
            return
        rows, columns = _size()
        if rows != self._rows or (rows and self._is_resized):
            self._set_aside(rows)
        if self._rows:
            self._draw(columns)

    def resized(self) -> None:
        """Reserve the last row again, and redraw: a change of size lets all rows scroll."""
        self._is_resized = True
        self.refresh()

    def suspend(self) -> None:
        """Release the last row until the next ``refresh``."""
        if self._rows:
            self._writer.put(_GIVE_BACK)
            self._rows = 0
            self._tell_last_words("")

    def close(self) -> None:
        """Release the last row permanently; from now on, wait a few seconds for a reader."""
        self.suspend()
        self.live = False
        self._writer.finish()

    def hurry(self) -> None:
        """Stop waiting for a reader, because a signal has requested the exit of this process."""
        self._writer.hurry()

    def _set_aside(self, rows: int) -> None:
        text = _SAVE + _RESET_SCROLLING + _RESTORE if self._rows else ""
        if rows:
            text += f"{_MAKE_ROOM}{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}"
        self._writer.put(text)
        if bool(rows) != bool(self._rows):
            self._tell_last_words(_GIVE_BACK if rows else "")
        self._rows, self._is_resized = rows, False

    def _draw(self, columns: int) -> None:
        # One column is left free: writing to the last one makes some terminals wrap.
        text = self._status
        if len(text) >= columns:
            text = text[: columns - 2] + "…"
        if self.colour:
            text = f"\x1b[7m{text.ljust(columns - 1)}\x1b[0m"
        # The region is set again each time, because a worker may have reset the terminal.
        region = f"\x1b[1;{self._rows - 1}r"
        self._writer.put(f"{_SAVE}{region}\x1b[{self._rows};1H{_CLEAR_LINE}{text}{_RESTORE}")


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(_STDERR) == os.getpgrp()
    except OSError:
        return False


def _size() -> tuple[int, int]:
    """Return rows and columns of the terminal; 0, 0 if it is too small for a live line."""
    try:
        # Not COLUMNS and LINES: they do not change when the terminal does.
        size = os.get_terminal_size(_STDERR)
    except OSError:
        return 0, 0
    if size.lines < _MIN_ROWS or size.columns < _MIN_COLUMNS:
        return 0, 0
    return size.lines, size.columns
