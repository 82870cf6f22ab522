"""Why the kernel refuses a process or file here: which limit was met, and what to raise."""

import errno
import os
import resource
from pathlib import Path

from .cgroups import own_directory, read_text

LEAST_FILES = 32
"""Open files that the agent of one worker needs, and some to spare."""

_SHORTAGES = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)


def no_process(error: OSError, root: Path = Path("/")) -> str:
    """Return the reason, as part of a sentence.

    Args:
        error: of ``fork(2)``, or of what is needed before it (pipes, sockets).
        root: where ``/proc`` and ``/sys`` are.
    """
    return f"no process can be made: {explained(error, root)}"


def explained(error: OSError, root: Path = Path("/")) -> str:
    """Return what an error of the kernel says, and what to raise where a limit was met."""
    return f"{error.strerror}{_remedy(error, root)}"


def too_few_files() -> str | None:
    """Return part of a sentence if this process may open too few files; else None."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit >= LEAST_FILES:
        return None
    return (
        f"a process may have {limit} open files here, and an agent needs {LEAST_FILES}: raise "
        "ulimit -n"
    )


def most_processes(root: Path = Path("/")) -> int | None:
    """Return how many processes this host can have at once, over all users; None if unknown.

    Args:
        root: where ``/proc`` is.
    """
    limits = [read_text(root / "proc/sys/kernel" / name) for name in ("pid_max", "threads-max")]
    return min((int(limit) for limit in limits if limit.strip().isdecimal()), default=None)


def is_shortage(code: int) -> bool:
    """Return whether an errno says that something ran out, rather than that something is wrong."""
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
    """Say which limits on processes there are; which one was met, the kernel does not tell."""
    limits = [*_of_user(root), *_of_cgroups(root)]
    if not limits:
        return "; raise kernel.pid_max and kernel.threads-max of this host"
    return f"; processes and threads are limited to {', '.join(limits)}: raise what is used up"


def _is_root_of_the_host(root: Path) -> bool:
    """Return whether the kernel sets no limits for this user: root outside of user namespaces."""
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
