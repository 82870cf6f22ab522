"""Explains why the kernel refuses a process or file: what to raise."""

import errno
import resource
from typing import Final

LEAST_FILES = 32
"""The open files that an agent with one worker needs, with a reserve."""

_SHORTAGES = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)


_REMEDIES: Final = {
    errno.ENFILE: "; all processes of this host together have too many: raise fs.file-max",
    errno.EAGAIN: (
        "; there are too many processes and threads: raise pids.max of the container, ulimit -u,"
        " or kernel.pid_max and kernel.threads-max of this host"
    ),
    errno.ENOMEM: "; raise the memory limit of the container, or start fewer workers",
}


def no_process(error: OSError) -> str:
    """Return the reason for a failed ``fork(2)``, or for that of the pipes and sockets before it.

    It is a part of a sentence.
    """
    return f"no process can be made: {explained(error)}"


def explained(error: OSError) -> str:
    """Return the text of a kernel error, with what to raise if a limit was exceeded."""
    remedy = _REMEDIES.get(error.errno or 0, "")
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        remedy = f"; a process may have {limit} open files here: raise ulimit -n"
    return f"{error.strerror}{remedy}"


def too_few_files() -> str | None:
    """Return a part of a sentence if the limit of open files is too low; else None."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit >= LEAST_FILES:
        return None
    return (
        f"a process may have {limit} open files here, and an agent needs {LEAST_FILES}: raise "
        "ulimit -n"
    )


def is_shortage(code: int) -> bool:
    """Return whether an errno means that a resource is exhausted."""
    return code in _SHORTAGES
