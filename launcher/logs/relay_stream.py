"""One stream in the relay: from a worker's pipe to its log file, the console, the filtered file.

A stream's exact bytes go to its log file at once, in whole chunks. The console gets whole lines
with a prefix; a carriage return ends a line as it does under torchrun, so progress bars show.
The relay never waits for a slow console: its lines are read back from the log file
when it is ready again, so memory stays flat and no worker blocks on a stalled terminal.
"""

import os
from collections.abc import Callable
from typing import Final

from .console import Console
from .log_file import LogFile, StreamPlan

CHUNK_BYTES: Final = 64 * 1024
"""One read: what a pipe holds by default, and the unit of fairness between streams."""

LINE_MAX_BYTES: Final = 1024 * 1024
"""A longer line is shown in pieces; the log file has it as it is."""


class LineBuffer:
    """Cuts a stream of bytes into blocks of whole lines, each ended by one newline."""

    __slots__ = ("_after_return", "_partial")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._after_return = False

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return the lines that are now complete, or nothing."""
        if self._after_return or b"\r" in data:
            if self._after_return and data.startswith(b"\n"):
                data = data[1:]  # the other half of a "\r\n" that a chunk border cut in two
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
        """Return the unfinished line with a newline, or nothing."""
        if not self._partial:
            return b""
        line = bytes(self._partial) + b"\n"
        self._partial.clear()
        return line


def prefixed(lines: bytes, prefix: bytes) -> bytes:
    """Return whole lines, each with ``prefix`` before it."""
    if not lines:
        return b""
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def matching(lines: bytes, needles: tuple[bytes, ...]) -> bytes:
    """Return those of the whole lines that contain any of ``needles``."""
    if not any(needle in lines for needle in needles):
        return b""
    kept = [ln for ln in lines.splitlines(keepends=True) if any(n in ln for n in needles)]
    return b"".join(kept)


class RelayedStream:
    """One stream on its way from a worker's pipe to its files and the console."""

    def __init__(
        self,
        pipe: int,
        prefix: bytes,
        plan: StreamPlan,
        console: Console,
        log_ended: Callable[[str, str], None],
    ) -> None:
        """Read from ``pipe``; ``prefix`` stands before each line that is shown or filtered."""
        self.pipe = pipe
        self.has_ended = False
        self._prefix, self._filters = prefix, plan.filters
        self._console = console
        self._log = LogFile(plan.path, log_ended) if plan.path else None
        self._filtered = LogFile(plan.filtered_path, log_ended) if plan.filtered_path else None
        self._lines = LineBuffer()
        self._filter_lines = LineBuffer()
        self._next_shown: int | None = None
        """Offset in the log file of what the console has to show next; None: it is up to date."""
        self._dropped = 0
        self._mark = 0

    @property
    def can_catch_up(self) -> bool:
        """Whether the console is behind the log file, and takes more."""
        return self._next_shown is not None and self._console.has_room

    @property
    def unshown(self) -> int:
        """How many bytes the console should have been given, and was not."""
        if self._console.is_closed:
            return 0
        if self._log is None or self._next_shown is None:
            return self._dropped
        return self._dropped + self._log.size - self._next_shown

    def pump(self) -> None:
        """Read and pass on one chunk, or note the end of file. Does not wait."""
        try:
            data = os.read(self.pipe, CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            self._take(data)
        else:
            self.end()

    def end(self) -> None:
        """Note that the worker writes no more; an unfinished line gets its newline."""
        self.has_ended = True
        self._filter(self._filter_lines.finish())
        if self._next_shown is None:
            self._show_end()

    def catch_up(self) -> None:
        """Give the console the next chunk from the log file."""
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
        """Return whether the stream has ended and all of it is in its files and shown."""
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
        # Only where the disk is full *and* the console is stalled can something be lost: the
        # choice is then between that and a training job that waits for a terminal.
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
