"""The worker's side of notices: nodes are being preempted, or the world grows.

The agent publishes a notice in a page of memory (a memfd). Each number in it is written by one
aligned store of 8 bytes, so readers never see half of one.
"""

import mmap
import os
import socket
import struct
import time
from functools import cache

from .agent_socket import ancestors, connect, log_no_answer

SOCKET = "notices"
"""Socket at which an agent hands out the page."""
PAGE_BYTES = 4096

UNTIL_NS, IS_WHOLE, SAVES, RESIZES, GROWS = range(5)
"""Indexes of 8-byte words in the page: the deadline until which ranks can save a consistent
snapshot (CLOCK_MONOTONIC; 0 without notice); 1 if all nodes of the job are being preempted, so that
nothing in memory survives; 1 if state that would be lost must be written to storage; 1 if the next
world has a different size, so that sharded state in memory cannot be used; 1 if the world grows and
no node is being preempted."""
NOTHING, SNAPSHOT, RESIZABLE, DURABLE = range(4)
"""Requirements of a notice, in increasing order: nothing; a consistent snapshot; one that a
different number of ranks can load; one on storage."""
MAGIC = b"ftrnotc1"
REQUEST = struct.Struct("<8sIIq")
"""A worker's request: ``MAGIC``, its rank, the kind, and a number: after ``LEFT`` the completed
steps, after ``KEEP`` 1 if only this number of ranks can load the state, else 0. The answer is
``MAGIC`` with the page as a descriptor; after ``LEFT``, ``MAGIC`` alone."""
ASK, KEEP, LEFT = range(3)
"""Kinds of requests: get the page; get it, and save a snapshot on notice; report it saved."""

_POLL_S = 0.02


class Notice:
    """The notice of this node's agent."""

    def __init__(self, pid: int, page_fd: int, rank: int) -> None:
        """``pid`` is the agent's; the caller closes ``page_fd``."""
        self._pid, self._rank = pid, rank
        self._page = memoryview(mmap.mmap(page_fd, PAGE_BYTES)).cast("Q")
        self._obeyed_ns = 0
        """Deadline of the notice that this process has obeyed."""

    @property
    def is_given(self) -> bool:
        """Whether nodes of this job are being preempted."""
        return bool(self._page[UNTIL_NS]) and not self._page[GROWS]

    @property
    def saves(self) -> bool:
        """Whether state that would be lost must be written to storage."""
        return bool(self._page[SAVES])

    @property
    def code(self) -> int:
        """Requirement of the notice; ``NOTHING`` if this process has obeyed it."""
        return NOTHING if self._page[UNTIL_NS] in (0, self._obeyed_ns) else self._need

    @property
    def _need(self) -> int:
        if self._page[IS_WHOLE]:
            return DURABLE
        return RESIZABLE if self._page[RESIZES] else SNAPSHOT

    def give_up(self) -> None:
        """Obey the notice without a report: the state could not be saved."""
        self._obeyed_ns = self._page[UNTIL_NS]

    def report_saved(self, step: int) -> None:
        """Report to the agent that this rank has saved its shard of a step."""
        self._obeyed_ns = self._page[UNTIL_NS]
        with log_no_answer(self._pid, "it is not told that this rank has saved its state"):
            _request(self._pid, self._rank, LEFT, step)

    def wait(self, done: int) -> bool:
        """Wait to be stopped, until the deadline of the notice that ``report_saved`` has obeyed.

        Return True as soon as the notice requires more than ``done``, e.g. ``RESIZABLE``; False at
        its deadline, or when it is withdrawn so that training continues.
        """
        while time.monotonic_ns() < self._page[UNTIL_NS] == self._obeyed_ns:
            if self._need > done:
                return True
            time.sleep(_POLL_S)
        return False


def find_notice(rank: int, *, will_save: bool, is_fixed: bool = False) -> Notice | None:
    """Return the notice of this process's agent; None if ft-run did not start it.

    ``will_save``: whether it saves a snapshot on notice. ``is_fixed``: whether only this number of
    ranks can load its state.
    """
    for pid in ancestors():
        fds: list[int] = []
        with log_no_answer(pid, "this rank sees no preemption notices in this round"):
            fds = _request(pid, rank, KEEP if will_save else ASK, int(is_fixed))
        if fds:
            notice = Notice(pid, fds[0], rank)
            for fd in fds:
                os.close(fd)
            return notice
    return None


def _request(pid: int, rank: int, kind: int, step: int) -> list[int]:
    """Send a request to an agent; return the descriptors of its answer, if any.

    Raises:
        OSError: If there is no agent, or it does not answer.
    """
    with connect(SOCKET, pid) as channel:
        channel.send(REQUEST.pack(MAGIC, rank, kind, step))
        data, fds, _, _ = socket.recv_fds(channel, len(MAGIC), 1)
    if data != MAGIC:
        for fd in fds:
            os.close(fd)
        return []
    return list(fds)


@cache
def _notice_of(_: int) -> Notice | None:
    """Return the notice for ``preempted``, once per process ID, so that a fork gets its own."""
    return find_notice(int(os.environ.get("RANK", "0")), will_save=False)


def preempted() -> bool:
    """Return whether nodes of this job are being preempted; see ``ft_run.training.preempted``."""
    notice = _notice_of(os.getpid())
    return notice is not None and notice.is_given
