"""Writes lines to standard error without waiting for a reader.

Lines that cannot be written now (Ctrl-S on a terminal, a pager on a pipe) are buffered, up to a
limit. At the end of the job the reader has a few seconds. Lines that it does not read are dropped;
one line reports how many, if it reads again.
"""

import contextlib
import time
from collections import deque
from typing import Final

from ..logs.console_file import ConsoleFile

_STDERR: Final = 2
_LAST_WORDS_S: Final = 5.0
"""How long the end of a job waits for a console that does not accept output."""
_SLICE_S: Final = 0.1
"""The interval at which a wait checks whether it was cancelled."""
_KEPT_MAX_BYTES: Final = 1 << 20


class LineWriter:
    """Writes texts of whole lines to standard error, in order."""

    def __init__(self) -> None:
        self._file: ConsoleFile | None = None
        with contextlib.suppress(OSError):  # there is no console; that must not end the job
            self._file = ConsoleFile(_STDERR)
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._is_begun = False
        """Whether a part of the first buffered text is already written; the buffer has the rest."""
        self._dropped = 0
        """Lines dropped since the last one that was written."""
        self._deadline: float | None = None
        """When waiting ends (``time.monotonic``); None: there is no wait."""

    @property
    def has_all_written(self) -> bool:
        """Whether the buffer is empty."""
        return not self._kept

    @property
    def is_ready(self) -> bool:
        """Whether the buffer is empty, and the console accepts output now."""
        return self.has_all_written and self._file is not None and self._file.is_writable(0.0)

    def put(self, text: str) -> None:
        """Write a text, now or later."""
        self._keep(text.encode(errors="backslashreplace"))
        while self._kept_bytes > _KEPT_MAX_BYTES and len(self._kept) > self._is_begun:
            self._drop()
        self.flush()

    def flush(self) -> None:
        """Write what the console accepts now; at the end, wait for it until the deadline."""
        while self._kept or self._dropped:
            is_note = self._dropped > 0 and not self._is_begun
            if is_note:
                text = b"[%d lines dropped: the console was not read]\n" % self._dropped
            else:
                text = self._kept[0]
            try:
                done = self._file.write(text) if self._file is not None else len(text)
            except BlockingIOError:
                if self._wait():
                    continue
                while self._deadline is not None and len(self._kept) > self._is_begun:
                    self._drop()
                return
            except OSError:  # there is no reader any more, or the disk is full
                done = len(text)
            if is_note:
                self._dropped = 0
            else:
                self._kept_bytes -= len(self._kept.popleft())
            self._is_begun = done < len(text)
            if self._is_begun:
                self._keep(text[done:], is_first=True)

    def finish(self) -> None:
        """From now on, wait for a reader, for a few seconds in total."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _LAST_WORDS_S
        self.flush()

    def hurry(self) -> None:
        """Stop waiting, also in a ``finish`` that is in progress."""
        self._deadline = time.monotonic()

    def _keep(self, text: bytes, *, is_first: bool = False) -> None:
        self._kept.insert(0 if is_first else len(self._kept), text)
        self._kept_bytes += len(text)

    def _drop(self) -> None:
        """Drop the first text that is not partly written: no line may be truncated."""
        text = self._kept[self._is_begun]
        del self._kept[self._is_begun]
        self._kept_bytes -= len(text)
        self._dropped += text.count(b"\n")

    def _wait(self) -> bool:
        """Wait for the console until the deadline; return whether it accepts output."""
        while self._file is not None and self._deadline is not None:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                return False
            if self._file.is_writable(min(left_s, _SLICE_S)):
                return True
        return False
