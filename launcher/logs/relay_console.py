"""The relay's way to the console: whole lines, written without ever waiting."""

import errno
import os
import select
from collections.abc import Mapping
from typing import Final

from .console_file import ConsoleFile
from .log_dir import Stream

PENDING_MAX_BYTES: Final = 256 * 1024
"""With more than this unwritten, the console is not given further chunks."""

_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Console:
    """One console. ``accepted`` and ``written`` count bytes since the start."""

    def __init__(self, fd: int, epoll: select.epoll) -> None:
        self.fd = -1
        self.is_closed = False
        self.accepted = 0
        self.written = 0
        self._epoll = epoll
        self._pending = bytearray()
        self._is_waiting = False
        self._file: ConsoleFile | None = None
        try:
            self._file = ConsoleFile(fd)
            self.fd = self._file.fd
        except OSError:
            self._close()

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be written now without memory growing beyond bounds."""
        return not self.is_closed and len(self._pending) < PENDING_MAX_BYTES

    @property
    def unshown(self) -> int:
        """How many bytes the console has not yet taken."""
        return len(self._pending)

    def write(self, lines: bytes) -> None:
        """Write whole lines, now or as soon as the console takes them."""
        if lines and not self.is_closed:
            self.accepted += len(lines)
            self._pending += lines
            self.flush()

    def flush(self) -> None:
        """Write as much as the console takes now; to be called when it is ready for more."""
        while self._pending and self._file is not None:
            try:
                done = self._file.write(self._pending)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in _DISK_FULL:
                    self._close()
                    return
                done = len(self._pending)
            self.written += done
            del self._pending[:done]
        self._wait(bool(self._pending))

    def _wait(self, is_wanted: bool) -> None:
        if is_wanted and not self._is_waiting:
            self._epoll.register(self.fd, select.EPOLLOUT)
        elif self._is_waiting and not is_wanted:
            self._epoll.unregister(self.fd)
        self._is_waiting = is_wanted

    def _close(self) -> None:
        """The console has no reader any more; the workers and the files are not affected."""
        self.is_closed = True
        self._pending.clear()
        if self._is_waiting:
            self._wait(False)
        if self._file is not None:
            self._file.close()


def open_consoles(epoll: select.epoll) -> Mapping[Stream, Console]:
    """Return the consoles behind the descriptors 1 and 2: one object if they are the same."""
    stdout = Console(1, epoll)
    if _identity(1) is not None and _identity(1) == _identity(2):
        return {Stream.STDOUT: stdout, Stream.STDERR: stdout}
    return {Stream.STDOUT: stdout, Stream.STDERR: Console(2, epoll)}


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
