"""The relay's way to the console: whole lines, written without ever waiting.

The agent, and workers that inherit its streams, write to the same console, and the flags of an
open file are shared with all of them. So the relay opens a pipe or terminal again for itself,
non-blocking, and leaves theirs as it is.
"""

import contextlib
import errno
import os
import select
import socket
import stat
from collections.abc import Mapping
from typing import Final

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
        self._socket: socket.socket | None = None
        self._is_pipe = False
        self._asks_first = False
        try:
            self._open(fd)
        except OSError:
            self._close()

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be written now without memory growing beyond bounds."""
        return not self.is_closed and len(self._pending) < PENDING_MAX_BYTES

    def write(self, lines: bytes) -> None:
        """Write whole lines, now or as soon as the console takes them."""
        if lines and not self.is_closed:
            self.accepted += len(lines)
            self._pending += lines
            self.flush()

    def flush(self) -> None:
        """Write as much as the console takes now; to be called when it is ready for more."""
        while self._pending:
            try:
                with memoryview(self._pending) as view, view[: self._piece_bytes()] as piece:
                    done = self._write(piece)
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

    def _open(self, fd: int) -> None:
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
            self.fd = self._socket.fileno()
            return
        self._is_pipe = stat.S_ISFIFO(mode)
        if self._is_pipe or os.isatty(fd):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                self.fd = os.open(f"/proc/self/fd/{fd}", flags)
                return
            except OSError:  # the terminal of another user, or nobody reads
                self._asks_first = True
        self.fd = os.dup(fd)

    def _piece_bytes(self) -> int:
        """Return how much of what is pending to write in one call.

        A pipe takes up to PIPE_BUF bytes as one or not at all (``pipe(7)``), so whole lines up
        to there are never torn, whoever else writes. A longer line goes in one call, too, but
        the kernel may take a part of it.
        """
        pending = self._pending
        if len(pending) <= select.PIPE_BUF or not (self._is_pipe or self._asks_first):
            return len(pending)
        short_lines = pending.rfind(b"\n", 0, select.PIPE_BUF) + 1
        if short_lines:
            return short_lines
        return select.PIPE_BUF if self._asks_first else pending.find(b"\n") + 1

    def _write(self, piece: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(piece, socket.MSG_DONTWAIT)
        if self._asks_first and not _is_writable(self.fd):
            raise BlockingIOError
        return os.write(self.fd, piece)

    def _wait(self, is_wanted: bool) -> None:
        if is_wanted and not self._is_waiting:
            self._epoll.register(self.fd, select.EPOLLOUT)
        elif self._is_waiting and not is_wanted:
            self._epoll.unregister(self.fd)
        self._is_waiting = is_wanted

    def _close(self) -> None:
        """Nobody will read this any more; the workers and the files are not affected."""
        self.is_closed = True
        self._pending.clear()
        if self._is_waiting:
            self._wait(False)
        if self._socket is not None:
            self._socket.close()
        elif self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)


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


def _is_writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
