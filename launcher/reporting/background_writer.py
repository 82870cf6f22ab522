"""Writes lines in a thread, so that a slow disk or reader never delays the agent.

Lines wait in memory, up to a limit. Lines that are lost, because the disk is full, the reader has
exited or the limit is reached, are counted; the count precedes the next line that can be written.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .outlets import Outlet

_GATHER_S: Final = 0.1
"""How long the first line waits for others: the thread must not compete with a restart."""
_WAITING_MAX_BYTES: Final = 8 << 20
_LAST_WORDS_S: Final = 2.0
"""How long the end of the job waits for the disk or the reader."""
_SLOW = "the disk or the reader is too slow"


class BackgroundWriter:
    """The lines of one outlet, in order. The first line starts the thread.

    ``failed`` is called once per outage, with the reason, but not in the thread.
    """

    def __init__(
        self,
        outlet: Outlet,
        lost_line: Callable[[int, str], bytes],
        failed: Callable[[str], None],
        max_bytes: int = _WAITING_MAX_BYTES,
    ) -> None:
        self._outlet = outlet
        self._lost_line, self._failed = lost_line, failed
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost, self._lost_reason = 0, ""
        self._reason = ""
        """Why lines cannot be written now; empty if they can."""
        self._is_told = self._is_closing = False
        # The interpreter does not wait for a daemon thread when it exits: the disk may hang.
        self._thread = threading.Thread(target=self._run, name="ft-run events", daemon=True)

    def put(self, line: bytes) -> None:
        """Write a line soon; never waits."""
        with self._changed:
            is_first = not self._waiting
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            while self._waiting_bytes > self._max_bytes and len(self._waiting) > 1:
                self._waiting_bytes -= len(self._waiting.popleft())
                self._count_lost(self._reason or _SLOW)
        if is_first:
            self._wake_soon()
        self._tell()

    def _wake_soon(self) -> None:
        """Wake the thread: a little later in an event loop, else immediately."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._wake()
        else:
            loop.call_later(_GATHER_S, self._wake)
            loop.call_later(2 * _GATHER_S, self._tell)

    def _wake(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        with self._changed:
            self._changed.notify()

    def close(self, limit_s: float = _LAST_WORDS_S) -> None:
        """Write the waiting lines, within a time limit, and end the thread."""
        if self._thread.ident is None and not self._waiting:
            self._outlet.close()
            return
        with self._changed:
            self._is_closing = True
        self._wake()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            with self._changed:
                self._reason = self._reason or _SLOW
        self._tell()

    def _tell(self) -> None:
        """Report an outage, once. Not in the thread, which must not call others."""
        with self._changed:
            reason = "" if self._is_told else self._reason
            self._is_told = bool(self._reason)
        if reason:
            self._failed(reason)

    def _count_lost(self, reason: str) -> None:
        self._reason = self._lost_reason = reason
        self._lost += 1

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while (line := self._next()) is not None:
            self._write(line)
        with suppress(OSError):
            self._write_lost()
        self._outlet.close()

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._waiting and not self._is_closing:
                self._changed.wait()
            if not self._waiting:
                return None
            line = self._waiting.popleft()
            self._waiting_bytes -= len(line)
            return line

    def _write(self, line: bytes) -> None:
        try:
            self._write_lost()
            self._outlet.write(line)
        except OSError as error:
            with self._changed:
                self._count_lost(error.strerror or str(error))
            return
        with self._changed:
            self._reason = ""

    def _write_lost(self) -> None:
        with self._changed:
            lost, reason = self._lost, self._lost_reason
        if lost:
            self._outlet.write(self._lost_line(lost, reason))
            with self._changed:
                self._lost -= lost
