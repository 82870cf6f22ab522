"""Asks the ft-run that started this worker for memory that outlives it."""

import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from . import snapshot_page as page

_ANSWER_S = 10.0
_CREDENTIALS = struct.Struct("3i")


class Memory(NamedTuple):
    """What the agent of this node holds for this worker."""

    page_fd: int
    buffer_fds: tuple[int, ...]
    resume_step: int
    """The step that all ranks resume from, as far as snapshots are concerned; -1: none."""


def ask(rank: int, *, replica: int = 0) -> Memory | None:
    """Return the memory for a rank; None: no ft-run started this process, or it has none.

    Args:
        rank: of this process.
        replica: from 1: memory for the shares of another rank, as many as there are.
    """
    request = page.REQUEST.pack(page.MAGIC, rank)
    if replica:
        request = page.REPLICA.pack(page.MAGIC, rank, replica)
    for pid in _ancestors():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(_ANSWER_S)
            try:
                channel.connect(page.address_of(pid))
                if not _is_trusted(channel):
                    continue
                channel.send(request)
                data, fds, _, _ = socket.recv_fds(channel, page.REPLY.size, 1 + page.BUFFERS)
            except OSError:
                continue
        if len(data) == page.REPLY.size and len(fds) == 1 + page.BUFFERS:
            for fd in fds:
                os.set_inheritable(fd, False)
            return Memory(fds[0], tuple(fds[1:]), page.REPLY.unpack(data)[1])
        for fd in fds:
            os.close(fd)
    return None


def _is_trusted(channel: socket.socket) -> bool:
    """Return whether the other end is this user's, or root's: any user may take a free name."""
    data = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[1] in (0, os.geteuid())


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name in brackets may hold anything, also brackets.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            return
