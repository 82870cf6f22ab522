"""Detects exits of workers that the spawner does not report, because it is stopped.

The kernel reports an exit to the owner of a pidfd immediately. If the spawner does not report it
too, it is woken with SIGCONT, which ends a SIGSTOP. If a debugger or a frozen cgroup stops it, the
exit is reported from here.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

WAKE_S: Final = 0.5
"""Time limit for the spawner to report an exit, which takes milliseconds."""
REPORT_S: Final = 2.0
"""Time limit after it was woken."""
_FREE_FILES: Final = 16
"""Exits are watched only as long as the agent can still open this many files."""

Key = tuple[int, int]
"""The round and local rank of a worker."""


class ExitWatch:
    """The workers that the spawner has started and not yet reported as exited."""

    def __init__(self, wake: Callable[[], None], report: Callable[[Key, int], None]) -> None:
        self._wake, self._report = wake, report
        self._watched: dict[Key, tuple[int, int]] = {}
        """Process ID and pidfd of each worker; pidfd -1 if it has exited or is not watched."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._reported_here: set[Key] = set()

    def started(self, key: Key, pid: int, limit: int) -> None:
        """Watch a worker. ``limit`` is the maximum number of open files of this process."""
        fd = -1
        with suppress(OSError):  # it has exited already, or the kernel has no pidfds (before 5.3)
            fd = os.pidfd_open(pid)
        if fd >= limit - _FREE_FILES:
            os.close(fd)
            fd = -1
        self._watched[key] = pid, fd
        if fd >= 0:
            asyncio.get_running_loop().add_reader(fd, self._exited, key)

    def reported(self, key: Key) -> bool:
        """Forget a worker whose exit the spawner reports; return whether this is the first report.

        The spawner also reports workers that it has not started.
        """
        self._forget(key)
        if key in self._reported_here:
            self._reported_here.remove(key)
            return False
        return True

    def close(self) -> None:
        """Stop watching."""
        for key in list(self._watched):
            self._forget(key)

    def _exited(self, key: Key) -> None:
        self._close(key)
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(WAKE_S, self._overdue, key)

    def _overdue(self, key: Key) -> None:
        self._wake()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(REPORT_S, self._missing, key)

    def _missing(self, key: Key) -> None:
        pid, _ = self._watched[key]
        self._forget(key)
        self._reported_here.add(key)
        self._report(key, _exit_code(pid))

    def _forget(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        self._close(key)
        self._watched.pop(key, None)

    def _close(self, key: Key) -> None:
        pid, fd = self._watched.get(key, (0, -1))
        if fd >= 0:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
            self._watched[key] = pid, -1


def _exit_code(pid: int) -> int:
    """Return the exit code of a process that was not reaped; 1 if it cannot be read.

    The kernel shows 0 for another user's process (``proc_pid_stat(5)``).
    """
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        if os.geteuid() in (0, os.fstat(file.fileno()).st_uid):
            return os.waitstatus_to_exitcode(int(file.read().rpartition(b")")[2].split()[49]))
    return 1
