"""The shared page that notifies the workers of this node of planned changes of the world."""

import asyncio
import mmap
import os
import socket
import time
from collections.abc import Callable

from ...training.worker import preemption as notices
from ..processes.shared_memory import shared_page
from ..processes.worker_socket import WorkerSocket


class NoticePage:
    """The page, and the workers of the round that have mapped it.

    ``left`` is called when a rank reports that it has saved its shard, or that the number of ranks
    is fixed. ``saves``: snapshots that would be lost are written to storage.
    """

    def __init__(self, left: Callable[[], None], *, saves: bool) -> None:
        self._left, self._saves = left, saves
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._words: memoryview | None = None
        self._workers = WorkerSocket(notices.SOCKET, self._answer)
        self._asked: set[int] = set()
        self._steps: dict[int, int | None] = {}
        """Step of the shard that each rank has saved; None before that."""
        self.is_fixed = False
        """Whether only this number of ranks can load the state of a worker."""

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Accept workers' requests; if that fails, workers do not receive notices."""
        try:
            self._fd, self._map = shared_page("ft-run-notices", notices.PAGE_BYTES)
            self._words = memoryview(self._map).cast("Q")
        except OSError:
            return
        self._workers.listen(loop)

    def begin(self) -> None:
        """Start a round: its workers have no notice, and none has requested notices."""
        self._asked.clear()
        self._steps.clear()
        self.is_fixed = False
        if self._words is not None:
            for word in range(len(self._words)):
                self._words[word] = 0
            self._words[notices.SAVES] = int(self._saves)

    @property
    def is_used(self) -> bool:
        """Whether a worker of the round has requested notices."""
        return bool(self._asked)

    @property
    def step(self) -> int | None:
        """The step that all ranks here have saved; -1 if no rank saves; None if not complete."""
        steps = set(self._steps.values())
        if not steps:
            return None if self._asked else -1
        (step, *others) = steps
        return None if others else step

    @property
    def only_ask(self) -> bool:
        """Whether workers have requested notices, and none will report a saved shard."""
        return bool(self._asked) and not self._steps

    @property
    def will_save(self) -> bool:
        """Whether a worker will report a saved shard."""
        return bool(self._steps)

    def tell(self, seconds: float, *, is_whole: bool, resizes: bool, grows: bool) -> None:
        """Notify the workers that the world will change.

        An active notice keeps its deadline, and its requests are not withdrawn: some ranks may
        already have acted on them, together with all others.

        Args:
            seconds: the time to save a consistent snapshot.
            is_whole: all nodes of the job are being preempted.
            resizes: the next world has a different size.
            grows: no node is being preempted.
        """
        words, now = self._words, time.monotonic_ns()
        if words is None:
            return
        if 0 < words[notices.UNTIL_NS] <= now and seconds > 0:
            self.withdraw()  # it has expired, and the ranks have continued
        is_active = words[notices.UNTIL_NS] > 0
        words[notices.IS_WHOLE] = int(is_whole or (is_active and words[notices.IS_WHOLE]))
        words[notices.RESIZES] = int(resizes or (is_active and words[notices.RESIZES]))
        words[notices.GROWS] = int(grows)
        if not is_active:
            words[notices.UNTIL_NS] = now + int(seconds * 1e9)

    def withdraw(self) -> bool:
        """Withdraw the notice, so that the workers continue; return whether there was one."""
        self._steps = dict.fromkeys(self._steps)
        words = self._words
        if words is None or not words[notices.UNTIL_NS]:
            return False
        for word in (notices.UNTIL_NS, notices.IS_WHOLE, notices.RESIZES, notices.GROWS):
            words[word] = 0
        return True

    def close(self) -> None:
        """Release all resources."""
        self._workers.close()
        if self._words is not None and self._map is not None:
            self._words.release()
            self._map.close()
            self._words = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- requests of workers -------------------------------------------------------------------

    def _answer(self, connection: socket.socket) -> None:
        try:
            request = connection.recv(notices.REQUEST.size)
            if len(request) == notices.REQUEST.size:
                magic, rank, kind, step = notices.REQUEST.unpack(request)
                if magic == notices.MAGIC:
                    self._hear(rank, kind, step)
                    fds = [self._fd] if kind in (notices.ASK, notices.KEEP) else []
                    socket.send_fds(connection, [notices.MAGIC], fds)
        except OSError:
            pass  # the worker has exited
        self._workers.hang_up(connection)

    def _hear(self, rank: int, kind: int, number: int) -> None:
        self._asked.add(rank)
        if kind == notices.KEEP:
            self._steps[rank] = None
            if number:
                self.is_fixed = True
                self._left()
        elif kind == notices.LEFT and rank in self._steps and number >= 0:
            self._steps[rank] = number
            self._left()
