"""Reads files at paths that workers can write to: only regular files, and without blocking."""

import os
import stat


def head_of_file(path: str, max_bytes: int) -> bytes | None:
    """Return the first ``max_bytes`` of a regular file; None if it cannot be read."""
    fd = _open(path)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            return file.read(max_bytes)
        except OSError:
            return None


def tail_of_file(path: str, max_bytes: int) -> bytes:
    """Return the last ``max_bytes`` of a regular file; empty if it cannot be read."""
    fd = _open(path)
    if fd is None:
        return b""
    with os.fdopen(fd, "rb") as file:
        try:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            return file.read(max_bytes)
        except OSError:
            return b""


def _open(path: str) -> int | None:
    """Open a regular file. Opening a FIFO would wait for a writer; a link can point anywhere."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None
