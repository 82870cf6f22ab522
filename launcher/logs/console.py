"""Console output of the agent and the relay: whole lines, written without blocking."""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from .console_file import ConsoleFile
from .log_file import Stream

PENDING_MAX_BYTES: Final = 256 * 1024
"""With more unwritten bytes than this, the console gets no more chunks."""


class Console:
    """One console. ``accepted`` and ``written`` count bytes since the start."""

    def __init__(self, fd: int) -> None:
        self.accepted = 0
        self.written = 0
        self._pending = bytearray()
        self._file: ConsoleFile | None = None
        """None if it has no reader any more, which does not affect the workers and the files."""
        with suppress(OSError):
            self._file = ConsoleFile(fd)

    @property
    def fd(self) -> int | None:
        """The descriptor to poll until the console accepts more; None if nothing is pending."""
        return self._file.fd if self._file is not None and self._pending else None

    @property
    def is_closed(self) -> bool:
        """Whether it is a pipe without a reader."""
        return self._file is None

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be written now, with limited memory."""
        return not self.is_closed and self.unshown < PENDING_MAX_BYTES

    @property
    def unshown(self) -> int:
        """Number of bytes that the console has not accepted yet."""
        return len(self._pending)

    def is_writable(self, timeout_s: float) -> bool:
        """Wait until the console accepts data; return False after the timeout."""
        return self._file is not None and self._file.is_writable(timeout_s)

    def write(self, lines: bytes) -> None:
        """Write whole lines, now or as soon as the console accepts them."""
        if not self.is_closed:
            self.accepted += len(lines)
            self._pending += lines
            self.flush()

    def flush(self) -> None:
        """Write as much as the console accepts now; call this when it is ready for more."""
        while self._pending and self._file is not None:
            try:
                done = self._file.write(self._pending)
            except BlockingIOError:
                return
            except OSError as error:
                # Other errors may be temporary: a full disk, an unresponsive file server.
                if error.errno == errno.EPIPE:
                    self._file = None
                done = len(self._pending)
            self.written += done
            del self._pending[:done]


def open_consoles() -> Mapping[Stream, Console]:
    """Return the consoles of descriptors 1 and 2: one object if they are the same file."""
    stdout = Console(1)
    with suppress(OSError):
        if os.path.sameopenfile(1, 2):
            return {Stream.STDOUT: stdout, Stream.STDERR: stdout}
    return {Stream.STDOUT: stdout, Stream.STDERR: Console(2)}
