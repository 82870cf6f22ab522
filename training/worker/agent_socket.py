"""Connects a worker to its agent over abstract Unix sockets."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from .log import log

_ANSWER_S = 10.0
_CREDENTIALS = struct.Struct("3i")
NOT_ANSWERING = (TimeoutError, BlockingIOError, ConnectionResetError, BrokenPipeError)
"""Errors of an agent that does not answer. Any other ``OSError``: there is none for this worker,
e.g. nothing listens, or the sandbox has no such sockets."""


def address_of(what: str, pid: int) -> bytes:
    """Return the address of an agent's socket; ``pid`` is in this process's PID namespace."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"\0ft-run-{what}-{namespace}-{pid}".encode()


def connect(what: str, pid: int) -> socket.socket:
    """Connect to an agent's socket, with a time-out of 10 s per operation.

    Raises:
        OSError: If no agent of this user or of root listens there.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.settimeout(_ANSWER_S)
        channel.connect(address_of(what, pid))
        if not is_trusted(channel):
            raise PermissionError("the socket belongs to another user")
    except BaseException:
        channel.close()
        raise
    return channel


@contextmanager
def log_no_answer(pid: int, lost: str) -> Iterator[None]:
    """Suppress ``OSError``; if there is an agent that does not answer, log what is ``lost``."""
    try:
        yield
    except NOT_ANSWERING as error:
        log(f"the ft-run agent of this node (process ID {pid}) does not answer: {error}; {lost}")
    except OSError:
        pass


def is_trusted(channel: socket.socket) -> bool:
    """Return whether the peer is this user or root: any user can bind a free name."""
    return _peer(channel)[1] in (0, os.geteuid())


def peer_pid(channel: socket.socket) -> int:
    """Return the process ID of the peer."""
    return _peer(channel)[0]


def _peer(channel: socket.socket) -> tuple[int, int]:
    data = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user


def ancestors() -> Iterator[int]:
    """Yield the process IDs of this process's parent, of its parent, and so on."""
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The command name in parentheses may itself contain parentheses.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            return
