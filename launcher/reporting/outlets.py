"""Where lines of ``--events`` go: a file that is rotated, or standard output.

An outlet writes whole lines, and may wait for the disk or the reader: only ``BackgroundWriter``
calls it, in its own thread.
"""

import os
import stat
from contextlib import suppress
from typing import Final, Protocol

from ...errors import UsageError
from ..flags.values import shown
from ..logs.console_file import ConsoleFile

MAX_BYTES: Final = 64 << 20
"""The size at which a file is rotated; one older file is kept."""
STDOUT: Final = "-"
_MODE: Final = 0o644
_POLL_S: Final = 1.0


class Outlet(Protocol):
    """Receives lines, one at a time."""

    def write(self, line: bytes) -> None:
        """Write one line, all of it or nothing; raises ``OSError`` if nothing was written."""

    def close(self) -> None:
        """Release the descriptor."""


def open_outlet(target: str) -> Outlet:
    """Open the target of ``--events``: ``-`` or a file; raises ``UsageError``."""
    if target == STDOUT:
        return StandardOutput()
    outlet = RotatedFile(target)
    try:
        outlet.open()
    except OSError as error:
        raise UsageError(
            f"cannot write events to {shown(target)}: {error.strerror}; expected a file in a"
            " writable directory or - with --events."
        ) from error
    return outlet


class RotatedFile:
    """A file of lines; at a size limit it is renamed to ``FILE.1``, and a new one is created.

    Processes of one host may share a file: each line is one append, and a process that finds that
    another one has rotated the file continues in the new one.
    """

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        self._path = os.path.abspath(path)
        self._max_bytes = max_bytes
        self._fd: int | None = None
        self._is_torn = False
        """Whether the file ends in a part of a line, which could not be removed."""

    def open(self) -> None:
        """Open or create the file; raises ``OSError`` if it is not a writable regular file."""
        # A FIFO without a reader would make a plain open wait for one.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        fd = os.open(self._path, flags, _MODE)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(0, "Not a regular file")
        self._fd = fd

    def write(self, line: bytes) -> None:
        """Append a line. If that fails, e.g. on a full disk, the written part is removed."""
        size = self._ready(len(line))
        assert self._fd is not None
        text = b"\n" + line if self._is_torn else line
        done = 0
        try:
            while done < len(text):  # a disk that is nearly full accepts a part
                done += os.write(self._fd, text[done:])
        except OSError:
            self._is_torn |= bool(done) and not self._take_back(size, done)
            raise
        self._is_torn = False

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _ready(self, more: int) -> int:
        """Open, reopen or rotate the file before a line; return its size."""
        if self._fd is not None and not self._is_in_place():
            self.close()
        if self._fd is None:
            self.open()
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if size and size + more > self._max_bytes:
            os.replace(self._path, f"{self._path}.1")
            self.close()
            self.open()
            self._is_torn, size = False, 0
        return size

    def _is_in_place(self) -> bool:
        """Return whether the path still leads to the open file."""
        assert self._fd is not None
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        return False

    def _take_back(self, size: int, done: int) -> bool:
        """Remove the part of a line that was written, unless another process has written since."""
        assert self._fd is not None
        with suppress(OSError):
            if os.fstat(self._fd).st_size == size + done:
                os.ftruncate(self._fd, size)
                return True
        return False


class StandardOutput:
    """Descriptor 1, opened again if possible: it must stay blocking for the workers."""

    def __init__(self) -> None:
        self._file = ConsoleFile(1)
        self._is_torn = False

    def write(self, line: bytes) -> None:
        """Write a line, when the reader accepts it."""
        text = b"\n" + line if self._is_torn else line
        done = 0
        try:
            while done < len(text):
                self._file.is_writable(_POLL_S)
                with suppress(BlockingIOError):
                    done += self._file.write(text[done:])
        except OSError:
            self._is_torn |= bool(done)
            raise
        self._is_torn = False

    def close(self) -> None:
        """Do nothing: the descriptor belongs to the process."""
