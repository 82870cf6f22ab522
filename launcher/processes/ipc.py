"""Messages between the processes of one node: length-prefixed JSON with file descriptors.

Agent, spawner, fork server and saver use them. Both ends have the same version, but a module that
the fork server imports can write to any file descriptor. Typed messages are in ``typed_messages``:
the fork server does not load msgspec.
"""

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

_HEADER = struct.Struct("!I")
_MAX_FDS = 253  # SCM_MAX_FD of Linux
_READ_BYTES = 1 << 20
_MAX_BYTES = 1 << 28
"""The maximum length of a message; the first four bytes of printable text are a larger number."""

_T = TypeVar("_T")


def send(channel: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    """Send a value of JSON over a blocking socket; the receiver gets duplicates of ``fds``.

    Raises:
        ConnectionError: If the other end is closed.
    """
    data = json.dumps(message).encode()
    data = _HEADER.pack(len(data)) + data
    while fds:
        sent = socket.send_fds(channel, [data[:1]], list(fds[:_MAX_FDS]))
        data, fds = data[sent:], fds[_MAX_FDS:]
    channel.sendall(data)


def close_all(fds: Iterable[int]) -> None:
    """Close file descriptors."""
    for fd in fds:
        os.close(fd)


def close_all_but(*kept: int) -> None:
    """Close this process's file descriptors, except the standard streams and ``kept``."""
    # Listed rather than counted up: the limit can be a billion.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, *kept):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


class Incoming(Generic[_T]):
    """Reads the messages and file descriptors of one socket.

    ``read`` converts the JSON text of a message, and raises ``ValueError`` if it is invalid.
    """

    def __init__(self, channel: socket.socket, read: Callable[[bytes], _T]) -> None:
        self._channel, self._read = channel, read
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._has_lost_fds = False

    def receive(self) -> list[_T] | None:
        """Return the messages that are complete after one read; None at end-of-file.

        Raises:
            BlockingIOError: If the socket is non-blocking and there is no data.
            ValueError: If a message is invalid.
        """
        try:
            data, fds, flags, _ = socket.recv_fds(self._channel, _READ_BYTES, _MAX_FDS)
        except ConnectionError:
            return None
        for fd in fds:  # recv_fds ignores its flags, so MSG_CMSG_CLOEXEC has no effect
            os.set_inheritable(fd, False)
        if not data:
            return None
        self._buffer += data
        self._fds += fds
        self._has_lost_fds |= bool(flags & socket.MSG_CTRUNC)
        messages = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > _MAX_BYTES:
                raise ValueError(f"invalid length {length} of a message")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(self._read(bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return messages

    def drop_fds(self) -> None:
        """Close the received file descriptors that were not taken."""
        close_all(self._fds)
        self._fds.clear()

    def take_fds(self, count: int) -> list[int]:
        """Return the next ``count`` received file descriptors; the caller owns them.

        Raises:
            OSError: If some were lost because this process is at its limit of open files.
        """
        taken = self._fds[:count]
        del self._fds[:count]
        if len(taken) == count and not self._has_lost_fds:
            return taken
        # It is unknown which of them are missing.
        close_all(taken)
        self.drop_fds()
        self._has_lost_fds = False
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
