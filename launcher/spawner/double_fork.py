"""Forks processes that become children of the nearest subreaper, not of the caller."""

import errno
import os
import signal
import struct

_RECORD = struct.Struct("ii")
"""A process's index and ID; or ``_FAILED`` and an error number."""
_FAILED = -1


def double_fork(count: int) -> list[int] | int:
    """Fork processes, each in its own session, as children of the subreaper.

    Returns an index in each forked process; in the caller the process IDs in order, or an empty
    list if one was killed before it had its own session. After an ``OSError``, no forked process
    keeps running.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        intermediate = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if not intermediate:
        os.close(reader)
        return _fork_and_exit(count, writer)
    os.close(writer)
    with open(reader, "rb") as file:  # ends when each process has its own session, or was killed
        records = dict(_RECORD.iter_unpack(file.read()))
    # Only after this process has been reaped are its children certain to be the subreaper's.
    os.waitpid(intermediate, 0)
    if number := records.get(_FAILED):
        raise OSError(number, os.strerror(number))
    return [records[index] for index in range(count)] if len(records) == count else []


def _fork_and_exit(count: int, writer: int) -> int:
    pids: list[int] = []
    try:
        for index in range(count):
            pids.append(os.fork())
            if not pids[-1]:
                os.setsid()
                os.write(writer, _RECORD.pack(index, os.getpid()))
                os.close(writer)
                return index
    except OSError as error:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        os.write(writer, _RECORD.pack(_FAILED, error.errno or errno.EIO))
    os._exit(0)
