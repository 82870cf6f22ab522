"""A worker's standard stream: its destination, and its log file, for appending and reading back."""

import contextlib
import enum
import os
from collections.abc import Callable
from typing import NamedTuple


class Stream(enum.Enum):
    """A standard stream of a worker; the value is its name in file names and messages."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Route(enum.Enum):
    """The destination of a worker's stream."""

    INHERIT = "inherit"
    """The agent's own stream."""
    DISCARD = "discard"
    """``/dev/null``: hidden by ``--local-ranks-filter`` and in no file."""
    FILE = "file"
    """The log file itself, opened with ``open_log``."""
    RELAY = "relay"
    """A pipe to the relay, which writes the log file and the console."""


class StreamPlan(NamedTuple):
    """Destination of one stream. The relay, which has no site-packages, uses this class, too."""

    route: Route
    path: str | None = None
    """The log file; None if there is none."""
    filters: tuple[bytes, ...] = ()
    """A relayed line that contains any of these is also written to ``filtered_path``."""
    filtered_path: str | None = None


def open_log(path: str) -> int:
    """Open (and create) a log file for appending; return its descriptor, which is not inheritable.

    It is also readable: the relay reads back lines that a slow console has not shown yet.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


class LogFile:
    """A file for appending until an error, which is reported once."""

    def __init__(self, path: str, log_ended: Callable[[str, str], None]) -> None:
        self._path = path
        self._ended = log_ended
        self._fd = -1
        self.size = 0
        self._is_whole = True
        try:
            self._fd = open_log(path)
            self.size = os.fstat(self._fd).st_size
        except OSError as error:
            self._stop(error)

    def write(self, data: bytes) -> int:
        """Append ``data``; return how many of its bytes were written to the file."""
        done = 0
        try:
            while self._is_whole and done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
        except OSError as error:
            self._stop(error)
        self.size += done
        return done

    def read_at(self, offset: int, max_bytes: int) -> bytes:
        """Return the data at ``offset``; empty at the end or if it cannot be read."""
        try:
            return os.pread(self._fd, max_bytes, offset)
        except OSError:
            return b""

    def close(self) -> None:
        """Close the file; data that the disk then refuses is lost."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _stop(self, error: OSError) -> None:
        self._is_whole = False
        self._ended(self._path, error.strerror or str(error))
