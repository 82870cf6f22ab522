"""Memory that this process shares with workers, which may write anything to it.

It is sealed: a worker cannot shrink it, so reading it never ends this process by SIGBUS.
"""

import fcntl
import mmap
import os


def shared_page(name: str, size_bytes: int) -> tuple[int, mmap.mmap]:
    """Return the descriptor of a new zeroed memory file and its mapping; the caller closes both.

    Raises:
        OSError: If no descriptor or no memory is available.
    """
    fd = shared_file(name, size_bytes)
    try:
        return fd, mmap.mmap(fd, size_bytes)
    except OSError:
        os.close(fd)
        raise


def shared_file(name: str, size_bytes: int = 0) -> int:
    """Return the descriptor of a new zeroed memory file, which can grow; the caller closes it.

    Raises:
        OSError: If no descriptor or no memory is available.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError:
        os.close(fd)
        raise
    return fd
