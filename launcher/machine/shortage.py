"""Explains why the kernel refuses a process or file: the exceeded limit, and how to raise it."""

import errno
import os
import resource
from pathlib import Path

from .cgroups import own_directory, read_text

LEAST_FILES = 32
"""The open files that an agent with one worker needs, with a reserve."""

_SHORTAGES = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)


def no_process(error: OSError, root: Path = Path("/")) -> str:
    """Return the reason for a failed ``fork(2)``, as part of a sentence.

    Args:
        error: the error of ``fork(2)``, or of the pipes and sockets before it.
        root: the directory below which ``proc`` and ``sys`` are looked up.
    """
    return f"no process can be made: {explained(error, root)}"


def explained(error: OSError, root: Path = Path("/")) -> str:
    """Return the text of a kernel error, with the limit to raise if one was exceeded."""
    return f"{error.strerror}{_remedy(error, root)}"


def too_few_files() -> str | None:
    """Return a part of a sentence if the limit of open files is too low; else None."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit >= LEAST_FILES:
        return None
    return (
        f"a process may have {limit} open files here, and an agent needs {LEAST_FILES}: raise "
        "ulimit -n"
    )


def most_processes(root: Path = Path("/")) -> int | None:
    """Return the maximum number of processes of this host, for all users; None: unknown."""
    limits = [read_text(root / "proc/sys/kernel" / name) for name in ("pid_max", "threads-max")]
    return min((int(limit) for limit in limits if limit.strip().isdecimal()), default=None)


def is_shortage(code: int) -> bool:
    """Return whether an errno means that a resource is exhausted."""
    return code in _SHORTAGES


def _remedy(error: OSError, root: Path) -> str:
    match error.errno:
        case errno.EMFILE:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"; a process may have {limit} open files here: raise ulimit -n"
        case errno.ENFILE:
            return "; all processes of this host together have too many: raise fs.file-max"
        case errno.EAGAIN:
            return _processes(root)
        case errno.ENOMEM:
            return "; raise the memory limit of the container, or start fewer workers"
    return ""


def _processes(root: Path) -> str:
    """Return the limits on processes; the kernel does not report which one was exceeded."""
    limits = [*_of_user(root), *_of_cgroups(root)]
    if not limits:
        return "; raise kernel.pid_max and kernel.threads-max of this host"
    return f"; processes and threads are limited to {', '.join(limits)}: raise what is used up"


def _is_root_of_the_host(root: Path) -> bool:
    """Return whether this user has no limits: root outside of user namespaces."""
    owned = read_text(root / "proc/self/uid_map").split()
    return os.geteuid() == 0 and owned in ([], ["0", "0", "4294967295"])


def _of_user(root: Path) -> list[str]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or _is_root_of_the_host(root):
        return []
    return [f"{limit} for user {os.getuid()} (ulimit -u)"]


def _of_cgroups(root: Path) -> list[str]:
    own = own_directory(root, "pids")
    found = []
    for folder in (own, *own.parents) if own is not None else ():
        most, used = (read_text(folder / name).strip() for name in ("pids.max", "pids.current"))
        if most.isdecimal():
            found.append(f"{most} for the container, of which {used} are used (pids.max)")
    return found
