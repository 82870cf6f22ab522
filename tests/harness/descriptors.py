"""The descriptors of this process that code under test may have left open."""

import contextlib
import os
import socket


def own_descriptors() -> set[tuple[int, str]]:
    """Return number and kind of each: files, pipes, memory, and sockets that carry packets.

    Event loops and sockets of streams are left out: gRPC and torch, once another test of this
    process has loaded them, open such ones in threads of their own, and gRPC anew at every fork.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that the folder was read through
            target = os.readlink(f"/proc/self/fd/{name}")
            is_foreign = target.startswith("socket:") and not _carries_packets(int(name))
            if not target.startswith("anon_inode:[event") and not is_foreign:
                found.add((int(name), target))
    return found


def _carries_packets(fd: int) -> bool:
    try:
        copy = socket.socket(fileno=os.dup(fd))
    except OSError:  # closed meanwhile
        return False
    with copy:
        return copy.type is socket.SOCK_SEQPACKET
