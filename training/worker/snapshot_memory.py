"""The worker's connection to its agent for snapshot memory and checkpoints."""

import os
import select
import socket
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from pathlib import Path

from . import snapshot_page as page
from .agent_socket import ancestors, connect, log_no_answer


class Memory:
    """Memory of the agent for this worker, which outlives the worker."""

    def __init__(
        self,
        page_fd: int,
        buffer_fds: Iterable[int],
        resume_step: int,
        saver: "SaverLink | None" = None,
        is_first_round: bool = True,
        resume_owner: int = 0,
    ) -> None:
        """Own the descriptors while this object lives.

        Args:
            buffer_fds: empty if the memory belongs to another process of this rank.
            resume_step: step from which all ranks can resume by snapshots; -1 if none.
            saver: saver of this node; None if only the worker writes checkpoints.
            is_first_round: whether this job cannot have written a checkpoint yet.
            resume_owner: owner of that step; 0 if unknown.
        """
        self.page_fd, self.buffer_fds = page_fd, tuple(buffer_fds)
        self.resume_step, self.resume_owner = resume_step, resume_owner
        self.saver, self.is_first_round = saver, is_first_round
        self.began_s = inf
        """Start time of this node's agent, in seconds since the epoch."""
        if self.buffer_fds:
            weakref.finalize(self, _close, (page_fd, *self.buffer_fds))


class SaverLink:
    """The saver of this node, which writes checkpoints from this rank's buffers."""

    def __init__(self, channel: socket.socket, held: int = 0) -> None:
        """Own the connection while this object lives; ``held`` has a bit per buffer being read."""
        self._channel = channel
        self._held: dict[int, tuple[int, int] | None] = {
            buffer: None for buffer in range(page.BUFFERS) if held & 1 << buffer
        }
        """Buffers that the saver is reading, with owner and step; None if unknown."""
        self._results: dict[int, tuple[int, str]] = {}
        """Step and error of the last checkpoint by owner."""
        self.page: memoryview | None = None
        """Page of the buffers, in which the saver counts progress."""
        weakref.finalize(self, channel.close)

    def save(self, buffer: int, step: int, owner: int) -> bool:
        """Request a checkpoint of a buffer, which must not change while ``is_held``.

        Returns:
            False if the agent is gone.
        """
        try:
            self._channel.setblocking(True)
            self._channel.send(page.SAVE.pack(page.MAGIC, buffer, step, owner))
        except OSError:
            return False
        self._held[buffer] = owner, step
        self._results[owner] = step, ""
        return True

    def error(self, owner: int) -> str:
        """Return why the last checkpoint of an owner was not written; empty if it is complete."""
        return self._results.get(owner, (0, ""))[1]

    def is_held(self, buffer: int) -> bool:
        """Return whether the saver is reading a buffer."""
        self._receive()
        return buffer in self._held

    @property
    def is_busy(self) -> bool:
        """Whether the saver is reading any buffer."""
        self._receive()
        return bool(self._held)

    @property
    def is_connected(self) -> bool:
        """Whether the agent has not disconnected this worker."""
        poll = select.poll()
        poll.register(self._channel, select.POLLHUP)
        return not poll.poll(0)

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until the saver is idle, up to a limit; return whether it is."""
        if self._held:
            self._receive(limit_s)
        return not self._held

    @property
    def progress(self) -> int:
        """A number that changes whenever the saver's storage makes progress."""
        return page.progress(self.page) if self.page is not None else 0

    def close(self) -> None:
        """Close the connection; requested checkpoints are still written."""
        self._channel.close()

    def _receive(self, limit_s: float | None = 0.0) -> None:
        try:
            self._channel.settimeout(limit_s)
            while self._held:
                data = self._channel.recv(page.SAVED.size + page.REASON_BYTES)
                if len(data) < page.SAVED.size:
                    self._disconnect()
                    return
                _, buffer, step, owner = page.SAVED.unpack_from(data)
                if self._held.get(buffer, (owner, step)) in (None, (owner, step)):
                    self._end(buffer, data[page.SAVED.size :].decode(errors="ignore"))
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            self._disconnect()

    def _end(self, buffer: int, error: str) -> None:
        request = self._held.pop(buffer, None)
        if request is not None:
            owner, step = request
            if self._results[owner][0] == step:
                self._results[owner] = step, error

    def _disconnect(self) -> None:
        for buffer in [*self._held]:
            self._end(buffer, "the ft-run agent of this node has exited")


_given: dict[tuple[int, int, int], Memory] = {}
"""Memory of this process by process ID, rank and replica: all Checkpointers share it."""


def request_memory(rank: int, *, replica: int = 0) -> Memory | None:
    """Return the agent's memory for a rank; None without ft-run, or if there is no memory.

    Later calls return the same object, as long as the agent serves it. ``replica`` is 0 for the
    rank's own shard, >= 1 for shards of other ranks.
    """
    key = os.getpid(), rank, replica
    given = _given.get(key)
    if given is not None and given.saver is not None and given.saver.is_connected:
        return given
    _given.pop(key, None)
    request = page.REQUEST.pack(page.MAGIC, rank)
    if replica:
        request = page.REPLICA.pack(page.MAGIC, rank, replica)
    for pid in ancestors():
        with log_no_answer(pid, "no snapshots are taken in this round"):
            channel = connect(page.SOCKET, pid)
            memory = _receive_memory(channel, request)
            if memory is not None:
                memory.began_s = _began_s(pid)
                if memory.buffer_fds:
                    _given[key] = memory
                return memory
    return None


def _began_s(pid: int) -> float:
    """Return when a process was started, in seconds since the epoch."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s


def report_written(rank: int, step: int, directory: str) -> None:
    """Report to the agent, if there is one, that this worker has written a checkpoint."""
    message = page.WRITTEN.pack(page.MAGIC, rank, step) + directory.encode()
    if len(message) > page.WRITTEN.size + page.DIRECTORY_BYTES:
        return
    for pid in ancestors():
        with suppress(OSError), connect(page.SOCKET, pid) as channel:
            channel.send(message)
            return


def _receive_memory(channel: socket.socket, request: bytes) -> Memory | None:
    try:
        channel.send(request)
        data, fds, _, _ = socket.recv_fds(channel, page.REPLY.size, 1 + page.BUFFERS)
    except OSError:
        channel.close()
        raise
    if len(data) != page.REPLY.size or len(fds) not in (0, 1 + page.BUFFERS):
        _close(fds)
        channel.close()
        return None
    _, step, owner, held, is_first_round = page.REPLY.unpack(data)
    if not fds:
        channel.close()
        return Memory(-1, (), -1, is_first_round=False)
    for fd in fds:
        os.set_inheritable(fd, False)
    return Memory(fds[0], fds[1:], step, SaverLink(channel, held), is_first_round, owner)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
