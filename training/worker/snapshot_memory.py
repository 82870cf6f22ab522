"""The worker's connection to its agent for snapshot memory and checkpoints."""

import os
import socket
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

from . import snapshot_page as page
from .agent_socket import ancestors, connect


class Memory(NamedTuple):
    """Memory of the agent for this worker; it survives the worker."""

    page_fd: int
    buffer_fds: tuple[int, ...]
    resume_step: int
    """The step from which all ranks can resume, as far as snapshots are concerned; -1: none."""
    saver: "SaverLink | None" = None
    """None: only the worker writes checkpoints."""
    is_first_round: bool = True
    """Whether this job cannot have written a checkpoint yet."""
    began_s: float = inf
    """Time when the agent of this node was started, in seconds since the epoch."""


class SaverLink:
    """The saver of this node, which writes checkpoints from this rank's buffers."""

    def __init__(self, channel: socket.socket, held: int = 0) -> None:
        """Take over the connection to the agent.

        Args:
            channel: the connection.
            held: buffers that the saver is reading, one bit each.
        """
        self._channel = channel
        self._held = held
        self.page: memoryview | None = None
        """The page of the buffers, in which the saver counts progress."""
        self.error = ""
        """Why the last checkpoint of this rank was not written; empty: it is complete."""

    def save(self, buffer: int, step: int) -> bool:
        """Request a checkpoint; return False if the agent is gone.

        Args:
            buffer: to write; it must not change while ``is_held``.
            step: completed steps.
        """
        try:
            self._channel.setblocking(True)
            self._channel.send(page.SAVE.pack(page.MAGIC, buffer, step))
        except OSError:
            return False
        self._held |= 1 << buffer
        return True

    def is_held(self, buffer: int) -> bool:
        """Return whether the saver is reading a buffer."""
        self._receive()
        return bool(self._held & 1 << buffer)

    @property
    def is_busy(self) -> bool:
        """Whether the saver is reading any buffer."""
        self._receive()
        return bool(self._held)

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until the saver is idle, up to a limit; return whether it is."""
        if self._held:
            self._receive(limit_s)
        return not self._held

    @property
    def progress(self) -> int:
        """A number that changes whenever the storage of the saver makes progress."""
        return page.progress(self.page) if self.page is not None else 0

    def close(self) -> None:
        """Close the connection; checkpoints that were requested are still written."""
        self._channel.close()

    def _receive(self, limit_s: float | None = 0.0) -> None:
        try:
            self._channel.settimeout(limit_s)
            while self._held:
                data = self._channel.recv(page.SAVED.size + page.REASON_BYTES)
                if len(data) < page.SAVED.size:
                    self._disconnect()
                    return
                _, buffer, _ = page.SAVED.unpack_from(data)
                self._held &= ~(1 << buffer)
                self.error = data[page.SAVED.size :].decode(errors="ignore")
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            self._disconnect()

    def _disconnect(self) -> None:
        self._held, self.error = 0, "the ft-run agent of this node has exited"


def request_memory(rank: int, *, replica: int = 0) -> Memory | None:
    """Return memory of the agent for a rank; None: not started by ft-run, or there is no memory.

    Args:
        rank: of this process.
        replica: from 1: memory for the shards of another rank; 0: for its own.
    """
    request = page.REQUEST.pack(page.MAGIC, rank)
    if replica:
        request = page.REPLICA.pack(page.MAGIC, rank, replica)
    for pid in ancestors():
        with suppress(OSError):
            channel = connect(page.SOCKET, pid)
            memory = _receive_memory(channel, request)
            if memory is not None:
                return memory._replace(began_s=_began_s(pid))
            channel.close()
    return None


def _began_s(pid: int) -> float:
    """Return when a process was started, in seconds since the epoch."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s


def report_written(rank: int, step: int) -> None:
    """Report to the agent, if there is one, that this worker has written a checkpoint.

    Args:
        rank: of this process.
        step: completed steps.
    """
    for pid in ancestors():
        with suppress(OSError), connect(page.SOCKET, pid) as channel:
            channel.send(page.WRITTEN.pack(page.MAGIC, rank, step))
            return


def _receive_memory(channel: socket.socket, request: bytes) -> Memory | None:
    try:
        channel.send(request)
        data, fds, _, _ = socket.recv_fds(channel, page.REPLY.size, 1 + page.BUFFERS)
    except OSError:
        return None
    if len(data) != page.REPLY.size or len(fds) != 1 + page.BUFFERS:
        for fd in fds:
            os.close(fd)
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    _, resume_step, held, is_first_round = page.REPLY.unpack(data)
    link = SaverLink(channel, held)
    return Memory(fds[0], tuple(fds[1:]), resume_step, link, is_first_round)
