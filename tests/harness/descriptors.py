"""The descriptors of a process that code under test may have left open.

Event loops and sockets of streams are left out: gRPC and torch, once another test of this process
has loaded them, open such ones in threads of their own.
"""

import contextlib
import os
import socket

_FOREIGN = ("anon_inode:[event", "socket:")


def own_descriptors() -> set[tuple[int, str]]:
    """Return number and kind of each: files, pipes, memory, and sockets that carry packets."""
    sockets = {one for one in _targets(os.getpid()) if one[1].startswith("socket:")}
    return files_of(os.getpid()) | {one for one in sockets if _carries_packets(one[0])}


def files_of(pid: int) -> set[tuple[int, str]]:
    """Return number and kind of each that is a file, a pipe or memory."""
    return {one for one in _targets(pid) if not one[1].startswith(_FOREIGN)}


def _targets(pid: int) -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that the folder was read through
            found.add((int(name), os.readlink(f"/proc/{pid}/fd/{name}")))
    return found


def _carries_packets(fd: int) -> bool:
    try:
        copy = socket.socket(fileno=os.dup(fd))
    except OSError:  # closed meanwhile
        return False
    with copy:
        return copy.type is socket.SOCK_SEQPACKET
