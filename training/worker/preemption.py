"""Asks the ft-run that started this worker whether nodes of the job will be gone soon.

The agent says so in a page of memory, which it holds as a file without a name. Each number there is
written by one aligned store of 8 bytes, so that no half of one is read.
"""

import mmap
import os
import socket
import struct
import time

from . import agent_socket
from .agent_socket import ancestors, connect

PAGE_BYTES = 4096

UNTIL_NS, IS_WHOLE, SAVES = range(3)
"""Where in the page, in words of 8 bytes: until when the ranks may take their time to leave one
state (CLOCK_MONOTONIC; 0: no node will be gone); 1 where all nodes of the job will be gone, so that
nothing in memory stays; 1 where that is to be written to storage then."""
MAGIC = b"ftrnotc1"
REQUEST = struct.Struct("<8sIIq")
"""What a worker says: ``MAGIC``, its rank, what it wants, and after ``LEFT`` how many steps. It is
answered with ``MAGIC`` and the page as a descriptor, after ``LEFT`` with ``MAGIC`` alone."""
ASK, KEEP, LEFT = range(3)
"""It asks for the page; it asks, and will leave the state of a step; it has left it."""

_LOOK_S = 0.02


def address_of(pid: int) -> bytes:
    """Return the address at which the agent of a process id hands out the page."""
    return agent_socket.address_of("notices", pid)


class Notice:
    """What the agent of this node says of nodes that will be gone."""

    def __init__(self, pid: int, page_fd: int, rank: int) -> None:
        """Read a page.

        Args:
            pid: the agent.
            page_fd: from it; the caller closes it.
            rank: of this process.
        """
        self._pid, self._rank = pid, rank
        self._page = memoryview(mmap.mmap(page_fd, PAGE_BYTES)).cast("Q")
        self._over_ns = 0
        """The order that this process has obeyed."""

    @property
    def is_given(self) -> bool:
        """Whether nodes will be gone."""
        return bool(self._page[UNTIL_NS])

    @property
    def is_whole(self) -> bool:
        """Whether all nodes of the job will be gone."""
        return bool(self._page[IS_WHOLE])

    @property
    def saves(self) -> bool:
        """Whether what would be lost is to be written to storage."""
        return bool(self._page[SAVES])

    @property
    def code(self) -> int:
        """Return what is to be done: 0 nothing, 1 leave a state, 2 leave one that lasts."""
        until = self._page[UNTIL_NS]
        return 0 if until in (0, self._over_ns) else 1 + int(self.is_whole)

    def left(self, step: int) -> None:
        """Say that this rank has left its share of the state of a step."""
        self._over_ns = self._page[UNTIL_NS]
        _say(self._pid, self._rank, LEFT, step)

    def wait(self, *, is_whole: bool) -> bool:
        """Wait to be stopped; return whether all nodes will be gone, where not all were before.

        It ends when the time of the order is over: then training goes on.
        """
        while time.monotonic_ns() < self._page[UNTIL_NS]:
            if self.is_whole and not is_whole:
                return True
            time.sleep(_LOOK_S)
        return False


def find_notice(rank: int, *, keeps: bool) -> Notice | None:
    """Return what the agent of this process says; None: no ft-run started it.

    Args:
        rank: of this process.
        keeps: it will leave the state of a step when it is told to.
    """
    for pid in ancestors():
        fds = _say(pid, rank, KEEP if keeps else ASK, 0)
        if fds:
            notice = Notice(pid, fds[0], rank)
            for fd in fds:
                os.close(fd)
            return notice
    return None


def _say(pid: int, rank: int, kind: int, step: int) -> list[int]:
    """Say something to an agent; return the descriptors that it answers with."""
    try:
        with connect(address_of(pid)) as channel:
            channel.send(REQUEST.pack(MAGIC, rank, kind, step))
            data, fds, _, _ = socket.recv_fds(channel, len(MAGIC), 1)
    except OSError:
        return []
    if data != MAGIC:
        for fd in fds:
            os.close(fd)
        return []
    return list(fds)


class _Asked:
    """The answer to ``preempted``, for this process."""

    notice: Notice | None = None
    pid = 0
    """The process that has asked."""


def preempted() -> bool:
    """Return whether nodes of this job will be gone; it is described in the package."""
    if _Asked.pid != os.getpid():
        _Asked.pid = os.getpid()
        _Asked.notice = find_notice(int(os.environ.get("RANK", "0")), keeps=False)
    return _Asked.notice is not None and _Asked.notice.is_given
