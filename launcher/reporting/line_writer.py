"""Writes lines to standard error without waiting for a reader.

Lines that cannot be written now (Ctrl-S on a terminal, a pager on a pipe) are buffered, up to a
limit; more lines are dropped, and one line reports how many. At the end of the job the reader has a
few seconds.
"""

import time
from typing import Final

from ..logs.console import Console

_STDERR: Final = 2
_LAST_WORDS_S: Final = 5.0
"""How long the end of a job waits for a console that does not accept output."""
_SLICE_S: Final = 0.1
"""The interval at which a wait checks whether it was canceled."""
_KEPT_MAX_BYTES: Final = 1 << 20


class LineWriter:
    """Writes strings of whole lines to standard error, in order."""

    def __init__(self) -> None:
        self._console = Console(_STDERR)
        self._dropped = 0
        """Lines dropped since the last one that was written."""
        self._deadline: float | None = None
        """When waiting ends (``time.monotonic``); None if it does not wait."""

    @property
    def has_all_written(self) -> bool:
        """Whether the buffer is empty."""
        return not self._console.unshown

    @property
    def is_ready(self) -> bool:
        """Whether the buffer is empty, and the console accepts output now."""
        return self.has_all_written and self._console.is_writable(0.0)

    def put(self, text: str) -> None:
        """Write lines, now or later."""
        self.flush()
        lines = text.encode(errors="backslashreplace")
        if self._dropped or self._console.unshown > _KEPT_MAX_BYTES:
            self._dropped += lines.count(b"\n")
            return
        self._console.write(lines)
        self.flush()

    def flush(self) -> None:
        """Write what the console accepts now; at the end, wait for it until the deadline."""
        self._console.flush()
        while not self.has_all_written and self._wait():
            self._console.flush()
        if self._dropped and self.has_all_written:
            self._console.write(b"[%d lines dropped: the console was not read]\n" % self._dropped)
            self._dropped = 0

    def finish(self) -> None:
        """From now on, wait for a reader, for a few seconds in total."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _LAST_WORDS_S
        self.flush()

    def hurry(self) -> None:
        """Stop waiting, even in a ``finish`` that is in progress."""
        self._deadline = time.monotonic()

    def _wait(self) -> bool:
        """Wait for the console until the deadline; return whether it accepts output."""
        while self._deadline is not None and (left_s := self._deadline - time.monotonic()) > 0:
            if self._console.is_writable(min(left_s, _SLICE_S)):
                return True
        return False
