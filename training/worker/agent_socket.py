"""How a worker finds the ft-run that started it: by sockets whose names are in no folder."""

import os
import socket
import struct
from collections.abc import Iterator

_ANSWER_S = 10.0
_CREDENTIALS = struct.Struct("3i")


def address_of(what: str, pid: int) -> bytes:
    """Return the address at which an agent answers its workers.

    Args:
        what: is asked for there.
        pid: the agent's process id, in the namespace of this process.
    """
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"\0ft-run-{what}-{namespace}-{pid}".encode()


def connect(address: bytes) -> socket.socket:
    """Return a connection to an agent, which may be waited for some seconds at most.

    Raises:
        OSError: there is none.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.settimeout(_ANSWER_S)
        channel.connect(address)
        if not is_trusted(channel):
            raise PermissionError("the socket belongs to another user")
    except BaseException:
        channel.close()
        raise
    return channel


def is_trusted(channel: socket.socket) -> bool:
    """Return whether the other end is this user's, or root's: any user may take a free name."""
    data = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[1] in (0, os.geteuid())


def ancestors() -> Iterator[int]:
    """Yield the process ids of this process's parent, of its parent, and so on."""
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name in brackets may hold anything, also brackets.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            return
