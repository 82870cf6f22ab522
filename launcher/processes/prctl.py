"""prctl(2): death signals and subreapers."""

import ctypes
import os
import signal

from ...exit_codes import SIGNAL_BASE

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, *arguments: int) -> None:
    """Make the system call, with integers or addresses; raises ``OSError`` if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *words) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when ``parent`` dies; exit if that has died already."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before the line above
        os._exit(SIGNAL_BASE + number)


def become_subreaper() -> None:
    """Adopt every descendant whose parent dies, instead of PID 1."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
