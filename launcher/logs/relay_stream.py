"""One stream in the relay: from a worker's pipe to its log file, the console, the filtered file.

The exact bytes go to the log file immediately, in whole chunks. The console gets whole lines with a
prefix; a carriage return ends a line, as in torchrun, so that progress bars are visible. The relay
never waits for a slow console: it reads the lines back from the log file when the console is ready
again, so memory stays limited and no worker blocks on a stalled terminal.
"""

import os
from collections.abc import Callable
from typing import Final

from .console import Console
from .log_file import LogFile, StreamPlan

CHUNK_BYTES: Final = 64 * 1024
"""Size of one read: the default capacity of a pipe, and the unit of fairness between streams."""

LINE_MAX_BYTES: Final = 1024 * 1024
"""A longer line is shown in pieces; the log file contains it unchanged."""


class LineBuffer:
    """Splits a stream of bytes into blocks of whole lines, each ended by one newline."""

    __slots__ = ("_after_return", "_partial")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._after_return = False

    def feed(self, data: bytes) -> bytes:
        """Add the next bytes; return the lines that are now complete, or nothing."""
        if self._after_return or b"\r" in data:
            if self._after_return and data.startswith(b"\n"):
                data = data[1:]  # the other half of a "\r\n" at a chunk border
            self._after_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = b""
        cut = data.rfind(b"\n") + 1
        if cut:
            lines = bytes(self._partial) + data[:cut]
            self._partial = bytearray(data[cut:])
        else:
            self._partial += data
        if len(self._partial) >= LINE_MAX_BYTES:
            lines += self.finish()
        return lines

    def finish(self) -> bytes:
        """Return the incomplete line with a newline, or nothing."""
        if not self._partial:
            return b""
        line = bytes(self._partial) + b"\n"
        self._partial.clear()
        return line


def prefixed(lines: bytes, prefix: bytes) -> bytes:
    """Return whole lines, each preceded by ``prefix``."""
    if not lines:
        return b""
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def matching(lines: bytes, needles: tuple[bytes, ...]) -> bytes:
    """Return the whole lines that contain any of ``needles``."""
    if not any(needle in lines for needle in needles):
        return b""
    kept = [ln for ln in lines.splitlines(keepends=True) if any(n in ln for n in needles)]
    return b"".join(kept)


class RelayedStream:
    """One stream from a worker's pipe to its files and the console."""

    def __init__(
        self,
        pipe: int,
        prefix: bytes,
        plan: StreamPlan,
        console: Console,
        log_ended: Callable[[str, str], None],
    ) -> None:
        """``prefix`` precedes each line that is shown or filtered."""
        self.pipe = pipe
        self.has_ended = False
        self._prefix, self._filters = prefix, plan.filters
        self._console = console
        self._log = LogFile(plan.path, log_ended) if plan.path else None
        self._filtered = LogFile(plan.filtered_path, log_ended) if plan.filtered_path else None
        self._lines = LineBuffer()
        self._filter_lines = LineBuffer()
        self._next_shown: int | None = None
        """Log file offset of the next output on the console; None if the console is up to date."""
        self._dropped = 0
        self._mark = 0

    @property
    def can_catch_up(self) -> bool:
        """Whether the console is behind the log file, and accepts more."""
        return self._next_shown is not None and self._console.has_room

    @property
    def unshown(self) -> int:
        """Number of bytes that should have been passed to the console, and were not."""
        if self._console.is_closed:
            return 0
        if self._log is None or self._next_shown is None:
            return self._dropped
        return self._dropped + self._log.size - self._next_shown

    def pump(self) -> None:
        """Read and pass on one chunk, or record the end of file. Does not wait."""
        try:
            data = os.read(self.pipe, CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            self._take(data)
        else:
            self.end()

    def end(self) -> None:
        """Record that the worker writes no more; an incomplete line gets a newline."""
        self.has_ended = True
        self._filter(self._filter_lines.finish())
        if self._next_shown is None:
            self._show_end()

    def catch_up(self) -> None:
        """Pass the next chunk from the log file to the console."""
        if self._next_shown is None or self._log is None:
            return
        data = self._log.read_at(self._next_shown, CHUNK_BYTES)
        self._next_shown += len(data)
        self._show(data)
        if not data or self._next_shown >= self._log.size:
            self._next_shown = None
            if self.has_ended:
                self._show_end()

    def is_written(self) -> bool:
        """Return whether the stream has ended and is completely in its files and shown."""
        is_shown = self._next_shown is None and self._console.written >= self._mark
        return self.has_ended and (is_shown or self._console.is_closed)

    def close(self) -> None:
        """Close the pipe and the files."""
        os.close(self.pipe)
        for file in (self._log, self._filtered):
            if file is not None:
                file.close()

    def _take(self, data: bytes) -> None:
        if self._filtered is not None:
            self._filter(self._filter_lines.feed(data))
        offset = self._log.size if self._log else 0
        logged = self._log.write(data) if self._log else 0
        if self._console.is_closed:
            return
        if self._next_shown is None:
            if self._console.has_room:
                self._show(data)
                return
            if logged:
                self._next_shown = offset
        # Data can be lost only if the disk is full *and* the console is stalled: the alternative is
        # a training job that waits for a terminal.
        self._dropped += len(data) - logged

    def _filter(self, lines: bytes) -> None:
        if self._filtered is not None and lines:
            found = matching(lines, self._filters)
            self._filtered.write(prefixed(found, self._prefix))

    def _show(self, data: bytes) -> None:
        lines = b""
        if self._dropped and self._next_shown is None:
            lines = self._lines.finish()
            lines += b"[%d bytes that the console was too slow for are lost]\n" % self._dropped
            self._dropped = 0
        lines += self._lines.feed(data)
        self._console.write(prefixed(lines, self._prefix))

    def _show_end(self) -> None:
        self._show(b"")
        self._console.write(prefixed(self._lines.finish(), self._prefix))
        self._mark = self._console.accepted
