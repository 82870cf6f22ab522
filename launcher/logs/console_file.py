"""A console for writing without waiting for its reader.

The agent, its relay, and workers that inherit its streams write to the same console, and share the
flags of an open file. So a pipe or terminal is opened again, non-blocking, and the shared flags are
left unchanged.
"""

import os
import select
import socket
import stat


class ConsoleFile:
    """Descriptor 1 or 2, for as long as this process lives."""

    def __init__(self, fd: int) -> None:
        """Open a descriptor's file again, or else use it; raise ``OSError`` if it is closed."""
        self.fd = fd
        self._socket: socket.socket | None = None
        self._asks_first = False
        mode = os.fstat(fd).st_mode
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(fd))
            elif not stat.S_ISREG(mode):
                self.fd = os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:  # another user's terminal, no reader, or no descriptor left
            self._asks_first = True

    def write(self, pending: bytes | bytearray) -> int:
        """Write as much of ``pending`` as one call accepts; return the number of bytes.

        A pipe accepts up to PIPE_BUF bytes completely or not at all (``pipe(7)``), so lines up to
        that size are never torn by other writers. Of a longer line, the kernel may accept only a
        part.

        Raises:
            BlockingIOError: If the console does not accept anything now.
            OSError: If it does not accept anything any more.
        """
        if self._asks_first and not self.is_writable(0.0):
            raise BlockingIOError
        with memoryview(pending) as view, view[: self._piece_bytes(pending)] as piece:
            if self._socket is not None:
                return self._socket.send(piece, socket.MSG_DONTWAIT)
            return os.write(self.fd, piece)

    def is_writable(self, timeout_s: float) -> bool:
        """Wait until the console accepts data; return False after the timeout."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(timeout_s * 1000))

    def _piece_bytes(self, pending: bytes | bytearray) -> int:
        if len(pending) <= select.PIPE_BUF:
            return len(pending)
        short_lines = pending.rfind(b"\n", 0, select.PIPE_BUF) + 1
        if short_lines:
            return short_lines
        return select.PIPE_BUF if self._asks_first else pending.find(b"\n") + 1 or len(pending)
