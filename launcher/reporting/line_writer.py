"""Lines on standard error, written without waiting for their reader.

Lines that cannot be written now (Ctrl-S on a terminal, a pager on a pipe) are kept for later, up to
a bound. At the end the reader has a few seconds. Lines that it does not take are dropped; one line
says how many, if it reads again.
"""

import contextlib
import time
from collections import deque
from typing import Final

from ..logs.console_file import ConsoleFile

_STDERR: Final = 2
_LAST_WORDS_S: Final = 5.0
"""How long the end of a job waits for a console that takes nothing."""
_SLICE_S: Final = 0.1
"""How often a wait looks whether it was cut short."""
_HELD_MAX_CHARS: Final = 1 << 20


class LineWriter:
    """Writes texts of whole lines to standard error, in their order."""

    def __init__(self) -> None:
        self._file: ConsoleFile | None = None
        with contextlib.suppress(OSError):  # there is no console; that must not end the job
            self._file = ConsoleFile(_STDERR)
        self._next = b""
        """The text that is written now, or the rest of it."""
        self._lines_of_next = 0
        """How many lines are lost if it is dropped."""
        self._is_begun = False
        """Whether a part of it is written."""
        self._held: deque[str] = deque()
        self._held_chars = 0
        self._dropped = 0
        """Lines dropped since the last one that was written."""
        self._deadline: float | None = None
        """When waiting ends (``time.monotonic``); None: nothing waits."""

    @property
    def has_all_written(self) -> bool:
        """Whether nothing is kept for later."""
        return not self._held and not self._next

    @property
    def is_ready(self) -> bool:
        """Whether nothing is kept for later, and the console takes something now."""
        return self.has_all_written and self._file is not None and self._file.is_writable(0.0)

    def put(self, text: str) -> None:
        """Write a text, now or later."""
        self._held.append(text)
        self._held_chars += len(text)
        while self._held_chars > _HELD_MAX_CHARS:
            self._drop()
        self.flush()

    def flush(self) -> None:
        """Write what the console takes now; at the end, wait for it while there is time."""
        while self._take_next():
            if not self._write() and not self._wait():
                if self._deadline is not None:
                    self._drop_all()
                return

    def finish(self) -> None:
        """From now on wait for a reader, for a few seconds in all."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _LAST_WORDS_S
        self.flush()

    def hurry(self) -> None:
        """Stop waiting, also in a ``finish`` that is under way."""
        self._deadline = time.monotonic()

    def _drop(self) -> None:
        text = self._held.popleft()
        self._held_chars -= len(text)
        self._dropped += text.count("\n")

    def _drop_all(self) -> None:
        if not self._is_begun:  # else a line would be torn
            self._dropped += self._lines_of_next
            self._next = b""
        while self._held:
            self._drop()

    def _take_next(self) -> bool:
        """Have the next text in ``_next``; return whether there is one."""
        if self._next:
            return True
        self._is_begun = False
        if self._dropped:
            text = f"[{self._dropped} lines that nothing read are dropped]\n"
            self._lines_of_next, self._dropped = self._dropped, 0
        elif self._held:
            text = self._held.popleft()
            self._held_chars -= len(text)
            self._lines_of_next = text.count("\n")
        else:
            return False
        self._next = text.encode(errors="backslashreplace")
        return True

    def _write(self) -> bool:
        """Write a part of the next text; return False where the console takes nothing now."""
        try:
            done = self._file.write(self._next) if self._file is not None else len(self._next)
        except BlockingIOError:
            return False
        except OSError:  # it will not be read any more, or the disk is full
            done = len(self._next)
        self._next = self._next[done:]
        self._is_begun = True
        return True

    def _wait(self) -> bool:
        """Wait for the console while there is time; return whether it takes something."""
        while self._file is not None and self._deadline is not None:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                return False
            if self._file.is_writable(min(left_s, _SLICE_S)):
                return True
        return False
