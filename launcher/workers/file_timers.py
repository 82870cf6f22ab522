"""The agent's side of ``torch.distributed.elastic.timer``: in a worker, ``with expires(60): ...``.

With ``TORCHELASTIC_ENABLE_FILE_TIMER=1`` a worker writes lines of JSON to the FIFO that
``TORCHELASTIC_TIMER_FILE`` names (torch's ``file_based_local_timer.py``):

    {"version": 1, "pid": 17, "scope_id": "train.py#5", "expiration_time": 1.7e9, "signal": 9}

sets a timer, in Unix time of this host; a negative time cancels it. Other lines are ignored.
"""

import asyncio
import contextlib
import os
import signal
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, MutableMapping

import msgspec
from msgspec import Struct

from ...errors import UsageError

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
_MAX_TIMERS = 10_000
_READ_BYTES = 65_536

Expired = Callable[[int, str, int], None]
"""Receives the process ID, the name of the timer, and the signal to send (0 for none)."""


class _Request(Struct, frozen=True):
    pid: int
    scope_id: str
    expiration_time: float
    signal: int


class FileTimers:
    """The FIFO and the active timers. One per agent. A FIFO of an earlier agent is replaced.

    Raises:
        UsageError: If a FIFO cannot be created at ``path``.
    """

    def __init__(self, path: str) -> None:
        try:
            if os.path.lexists(path) and stat.S_ISFIFO(os.lstat(path).st_mode):
                os.unlink(path)
            os.mkfifo(path, 0o600)
            # Also opened for writing: without a writer the FIFO would be at EOF, always readable.
            self._fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(
                f"{TIMER_FILE}: cannot create a FIFO at {path!r} ({error.strerror}); "
                "expected a path that does not exist, in a directory of this host."
            ) from None
        self.path = path
        self._rest = b""
        self._timers: dict[tuple[int, str], asyncio.TimerHandle] = {}
        self._expired: Expired | None = None

    def listen(self, loop: asyncio.AbstractEventLoop, expired: Expired) -> None:
        """Read requests from now on; call ``expired`` for each timer that expires."""
        self._expired = expired
        loop.add_reader(self._fifo, self._read)

    def forget(self, pid: int | None = None) -> None:
        """Cancel the timers of a process; all timers if it is None."""
        for key in [key for key in self._timers if pid in (None, key[0])]:
            self._timers.pop(key).cancel()

    def close(self) -> None:
        """Remove the FIFO, unless another agent has created its own at the path."""
        self.forget()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(self.path), os.fstat(self._fifo)):
                os.unlink(self.path)
        os.close(self._fifo)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._fifo, _READ_BYTES)).split(b"\n")
        self._rest = self._rest[-_READ_BYTES:]
        for line in lines:
            self._request(line)

    def _request(self, line: bytes) -> None:
        try:
            request = msgspec.json.decode(line, type=_Request)
        except (ValueError, RecursionError):
            return
        pid, scope, number = request.pid, request.scope_id, request.signal
        if (timer := self._timers.pop((pid, scope), None)) is not None:
            timer.cancel()
        is_known = number <= 0 or number in signal.valid_signals()
        if request.expiration_time < 0 or not is_known or len(self._timers) >= _MAX_TIMERS:
            return
        loop = asyncio.get_running_loop()
        delay = max(0.0, request.expiration_time - time.time())
        self._timers[pid, scope] = loop.call_later(delay, self._over, pid, scope, max(0, number))

    def _over(self, pid: int, scope: str, number: int) -> None:
        del self._timers[pid, scope]
        assert self._expired is not None
        self._expired(pid, scope, number)


def make_file_timers(environ: MutableMapping[str, str]) -> FileTimers:
    """Return the timers and set the FIFO's variable in ``environ``; the user has enabled timers."""
    made_up = os.path.join(tempfile.gettempdir(), f"watchdog_timer_{uuid.uuid4()}")
    timers = FileTimers(environ.get(TIMER_FILE) or made_up)
    environ[TIMER_FILE] = timers.path
    return timers
