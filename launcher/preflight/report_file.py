"""``--check-report``: validates the path of the report, and writes it.

A file is replaced atomically: a process that waits for it never reads a partial report. A path
that is not a regular file (a terminal, a pipe, a device) is written to and not replaced.
"""

import contextlib
import errno
import os
import select
import stat
import sys
import time
from pathlib import Path
from typing import Final

from ...errors import UsageError

_READER_S: Final = 5.0
"""The total time to wait for a reader before the report is discarded: the job waits too."""


def check_report_path(path: str | None) -> None:
    """Reject a path that cannot be written, before the checks start.

    Raises:
        UsageError: the path is a folder, or the path or its folder is not writable.
    """
    if path is None:
        return
    found = _status(path)
    if found is None or stat.S_ISREG(found.st_mode):
        may_write = os.access(Path(path).resolve().parent, os.W_OK | os.X_OK)
    else:
        may_write = not stat.S_ISDIR(found.st_mode) and os.access(path, os.W_OK)
    if not may_write and _own_stream(found) is None:
        raise UsageError(
            f"cannot write --check-report {path!r}; expected a file in a directory that exists "
            "and is writable."
        )


def write_report(path: str, report: str) -> None:
    """Write the report.

    Raises:
        UsageError: it cannot be written.
    """
    text = report + "\n"
    found = _status(path)
    stream = _own_stream(found)
    try:
        if stream is not None:
            sys.stdout.flush()  # keeps the order of output on this process's own streams
            _write_all(stream, text.encode())
        elif found is None or stat.S_ISREG(found.st_mode):
            _replace(Path(path).resolve(), text)
        else:
            # A pipe without a reader is an error; there is no wait for a reader.
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                _write_all(fd, text.encode())
            finally:
                os.close(fd)
    except OSError as error:
        why = "it is a pipe without a reader" if error.errno == errno.ENXIO else error.strerror
        raise UsageError(f"cannot write --check-report {path!r}: {why}.") from error


def _status(path: str) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return os.stat(path)
    return None


def _own_stream(found: os.stat_result | None) -> int | None:
    """Return this process's own stream that a path refers to (``/dev/stdout``), if any.

    Opening the path again would write at the file's beginning, or fail for a socket.
    """
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if found is not None and os.path.samestat(found, os.fstat(fd)):
                return fd
    return None


def _replace(target: Path, text: str) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _write_all(fd: int, data: bytes) -> None:
    """Write to a file that may be a pipe with a slow reader.

    Raises:
        OSError: it cannot be written, or its reader is too slow.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    until = time.monotonic() + _READER_S
    while data:
        if not poll.poll(max(until - time.monotonic(), 0) * 1000):
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(fd, data[: select.PIPE_BUF]) :]
