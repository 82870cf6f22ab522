"""The page in which the workers of this node are told that nodes will be gone."""

import asyncio
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable

from ...training import notice_page as page

_CREDENTIALS = struct.Struct("3i")
_WAITING_MAX = 128
"""Workers that ask at the same moment."""


class NoticePage:
    """The page, and the workers of the round that know it; ``close`` it."""

    def __init__(self, left: Callable[[], None]) -> None:
        """Hold nothing yet.

        Args:
            left: is called when a rank says that it has left its state.
        """
        self._left = left
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._words: memoryview | None = None
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: set[socket.socket] = set()
        self._asked: set[int] = set()
        self._steps: dict[int, int | None] = {}
        """By rank, of those that leave a state: of which step they have; None: not yet."""

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer workers that ask; where that is not possible, they are told nothing."""
        try:
            self._fd = os.memfd_create("ft-run-notices")
            os.ftruncate(self._fd, page.PAGE_BYTES)
            self._map = mmap.mmap(self._fd, page.PAGE_BYTES)
            self._words = memoryview(self._map).cast("Q")
            server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server.bind(page.address_of(os.getpid()))
            server.listen(_WAITING_MAX)
        except OSError:
            return
        server.setblocking(False)
        self._socket, self._loop = server, loop
        loop.add_reader(server, self._accept, server)

    def begin(self) -> None:
        """A round begins: its workers are told nothing, and none has asked."""
        self._asked.clear()
        self._steps.clear()
        if self._words is not None:
            for word in range(len(self._words)):
                self._words[word] = 0

    @property
    def is_used(self) -> bool:
        """Whether a worker of the round has asked."""
        return bool(self._asked)

    @property
    def step(self) -> int | None:
        """The step whose state all ranks here have left; -1: none leaves one; None: not yet."""
        steps = set(self._steps.values())
        if not steps:
            return None if self._asked else -1
        (step, *others) = steps
        return None if others else step

    @property
    def only_ask(self) -> bool:
        """Whether workers have asked, and none will say that it has left a state."""
        return bool(self._asked) and not self._steps

    def tell(self, seconds: float, *, is_whole: bool) -> None:
        """Tell the workers that nodes will be gone.

        Args:
            seconds: how long they may take to leave one state; an order that runs keeps its time.
            is_whole: all nodes of the job will be gone.
        """
        if self._words is None:
            return
        self._words[page.IS_WHOLE] = int(is_whole)
        if not self._words[page.UNTIL_NS]:
            self._words[page.UNTIL_NS] = time.monotonic_ns() + int(seconds * 1e9)

    def close(self) -> None:
        """Give everything back."""
        if self._loop is not None and self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        for connection in list(self._asking):
            self._hang_up(connection)
        if self._words is not None and self._map is not None:
            self._words.release()
            self._map.close()
            self._words = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- workers that ask ----------------------------------------------------------------------

    def _accept(self, server: socket.socket) -> None:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(data)[1] not in (0, os.geteuid()):
            connection.close()
            return
        connection.setblocking(False)
        assert self._loop is not None
        self._asking.add(connection)
        self._loop.add_reader(connection, self._answer, connection)

    def _answer(self, connection: socket.socket) -> None:
        try:
            request = connection.recv(page.REQUEST.size)
            if len(request) == page.REQUEST.size:
                magic, rank, kind, step = page.REQUEST.unpack(request)
                if magic == page.MAGIC:
                    self._hear(rank, kind, step)
                    fds = [self._fd] if kind in (page.ASK, page.KEEP) else []
                    socket.send_fds(connection, [page.MAGIC], fds)
        except OSError:
            pass  # the worker is gone
        self._hang_up(connection)

    def _hear(self, rank: int, kind: int, step: int) -> None:
        self._asked.add(rank)
        if kind == page.KEEP:
            self._steps[rank] = None
        elif kind == page.LEFT and rank in self._steps and step >= 0:
            self._steps[rank] = step
            self._left()

    def _hang_up(self, connection: socket.socket) -> None:
        assert self._loop is not None
        self._loop.remove_reader(connection)
        self._asking.discard(connection)
        connection.close()
