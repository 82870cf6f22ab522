"""Asks the ft-run that started this worker for memory that outlives it."""

import os
import socket
from contextlib import suppress
from typing import NamedTuple

from . import snapshot_page as page
from .agent_socket import ancestors, connect


class Memory(NamedTuple):
    """What the agent of this node holds for this worker."""

    page_fd: int
    buffer_fds: tuple[int, ...]
    resume_step: int
    """The step that all ranks resume from, as far as snapshots are concerned; -1: none."""
    saver: "SaverLink | None" = None
    """None: nothing but the worker writes checkpoints."""
    is_first_round: bool = True
    """Nothing has been written by this job yet."""


class SaverLink:
    """The saver of this node, which writes checkpoints from this rank's buffers."""

    def __init__(self, channel: socket.socket, held: int = 0) -> None:
        """Use the connection to the agent.

        Args:
            channel: it becomes this object's.
            held: the buffers that the saver reads already, a bit for each.
        """
        self._channel = channel
        self._held = held
        self.page: memoryview | None = None
        """That of the buffers, where the saver notes that it gets on."""
        self.words = ""
        """Why the last checkpoint of this rank was not written; empty: it is complete."""

    def save(self, buffer: int, step: int) -> bool:
        """Ask for a checkpoint; return False if no agent is there.

        Args:
            buffer: what to write; it is to be left alone while ``is_held``.
            step: how many steps were done.
        """
        try:
            self._channel.setblocking(True)
            self._channel.send(page.SAVE.pack(page.MAGIC, buffer, step))
        except OSError:
            return False
        self._held |= 1 << buffer
        return True

    def is_held(self, buffer: int) -> bool:
        """Return whether the saver reads a buffer."""
        self._hear()
        return bool(self._held & 1 << buffer)

    @property
    def is_busy(self) -> bool:
        """Whether the saver reads any buffer."""
        self._hear()
        return bool(self._held)

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until it reads none, for some time at most; return whether that is so."""
        if self._held:
            self._hear(limit_s)
        return not self._held

    @property
    def progress(self) -> int:
        """A number that changes when the storage has done something for the saver."""
        return page.progress(self.page) if self.page is not None else 0

    def close(self) -> None:
        """Ask for nothing more; what was asked for is done."""
        self._channel.close()

    def _hear(self, limit_s: float | None = 0.0) -> None:
        try:
            self._channel.settimeout(limit_s)
            while self._held:
                data = self._channel.recv(page.SAVED.size + page.WORDS_BYTES)
                if len(data) < page.SAVED.size:
                    self._lose()
                    return
                _, buffer, _ = page.SAVED.unpack_from(data)
                self._held &= ~(1 << buffer)
                self.words = data[page.SAVED.size :].decode(errors="ignore")
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            self._lose()

    def _lose(self) -> None:
        """The agent is gone, and the saver with it."""
        self._held, self.words = 0, "the ft-run agent of this node has exited"


def ask(rank: int, *, replica: int = 0) -> Memory | None:
    """Return the memory for a rank; None: no ft-run started this process, or it has none.

    Args:
        rank: of this process.
        replica: from 1: memory for the shares of another rank, as many as there are.
    """
    request = page.REQUEST.pack(page.MAGIC, rank)
    if replica:
        request = page.REPLICA.pack(page.MAGIC, rank, replica)
    for pid in ancestors():
        with suppress(OSError):
            channel = connect(page.address_of(pid))
            memory = _ask(channel, request)
            if memory is not None:
                return memory
            channel.close()
    return None


def tell_written(rank: int, step: int) -> None:
    """Tell the agent of this node, if there is one, that this worker has written a checkpoint.

    Args:
        rank: of this process.
        step: how many steps were done.
    """
    for pid in ancestors():
        with suppress(OSError), connect(page.address_of(pid)) as channel:
            channel.send(page.WRITTEN.pack(page.MAGIC, rank, step))
            return


def _ask(channel: socket.socket, request: bytes) -> Memory | None:
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
