"""Explains why the kernel refuses a process or file, and which limit to raise."""

import errno
import os
import resource
import threading
from pathlib import Path
from typing import Final

from ...errors import NoProcessError
from .cgroups import own_directory, read_text

LEAST_FILES = 32
"""Number of open files that an agent with one worker needs, with a reserve."""

_GRPC_THREADS = 4
"""Threads of gRPC, in addition to one per CPU (4 to 16); including one for a name server."""

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
    """Return part of a sentence: why ``fork(2)``, or its pipes and sockets, failed."""
    return f"no process can be made: {explained(error)}"


def explained(error: OSError) -> str:
    """Return the message of a kernel error; if a limit was exceeded, with the limit to raise."""
    remedy = _REMEDIES.get(error.errno or 0, "")
    if error.errno == errno.EAGAIN and (pids := _most_pids()):
        remedy = remedy.replace("the container", f"the container (now {pids})")
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        remedy = f"; a process may have {limit} open files here: raise ulimit -n"
    return f"{error.strerror}{remedy}"


def require_grpc_threads() -> None:
    """Raise ``NoProcessError`` if gRPC could not start its threads: it would abort silently."""
    needed = _GRPC_THREADS + min(max(os.cpu_count() or 1, 4), 16)
    done = threading.Event()
    threads: list[threading.Thread] = []
    try:
        for _ in range(needed):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        reason = explained(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        raise NoProcessError(
            f"connections need {needed} threads, and {len(threads)} can be started: {reason}."
        ) from None
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _most_pids() -> str:
    """Return the limit on processes and threads of this process's own cgroup; empty if none."""
    folder = own_directory(Path("/"), "pids")
    limit = read_text(folder / "pids.max").strip() if folder is not None else ""
    return limit if limit.isdecimal() else ""


def too_few_files() -> str | None:
    """Return part of a sentence if the limit of open files is too low; else None."""
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
