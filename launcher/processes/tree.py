"""Finds and ends the descendants of a process. Used by the single-threaded helpers.

It reads the kernel's lists of children; psutil reads every process of the host to find them.
"""

import os
import select
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from ...errors import UsageError

_KILL_AGAIN_S = 0.01
_SHELLS = {"ash", "bash", "busybox", "dash", "ksh", "mksh", "sh", "zsh"}


def require_own_proc() -> None:
    """Raise ``UsageError`` if /proc is missing, or belongs to another PID namespace."""
    try:
        shown = os.readlink("/proc/self")
    except OSError as error:
        wrong = f"/proc/self cannot be read ({error.strerror})"
    else:
        if shown == str(os.getpid()):
            return
        wrong = f"this process is {os.getpid()} here and {shown} in /proc"
    raise UsageError(
        f"/proc is not that of this PID namespace: {wrong}; ft-run finds and ends processes by it. "
        "Mount one here (`unshare --pid --fork --mount-proc`, or `mount -t proc proc /proc`)."
    )


def children(pid: int) -> list[int]:
    """Return the process IDs of the direct children of ``pid``, including zombies."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}/task"):  # a kernel without CONFIG_PROC_CHILDREN
            return _children_by_scan(pid)
    except ProcessLookupError:
        pass
    return found


def _children_by_scan(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The command name is in parentheses and may contain any character, even ')'.
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(name))
    return found


def descendants(pid: int) -> list[int]:
    """Return the process IDs of all descendants of ``pid``, parents before children."""
    found = children(pid)
    for child in found:  # grows during the iteration
        found += children(child)
    return found


def family(leader: int, found: Iterable[int]) -> set[int]:
    """Return a session leader, its descendants, and the processes of ``found`` in its session."""
    members = {leader, *descendants(leader)}
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                members.add(pid)
    return members


def is_zombie(pid: int) -> bool:
    """Return whether a process is dead: a zombie, or already reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def exits_within(pid: int, seconds: float) -> bool:
    """Wait for a process; return whether it has exited."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # the kernel has no pidfds (before 5.3), or too many files are open
        end = time.monotonic() + seconds
        while not is_zombie(pid) and time.monotonic() < end:
            time.sleep(_KILL_AGAIN_S)
        return is_zombie(pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(fd)


def processor_ticks(pid: int) -> int:
    """Return the CPU time of a process in ticks of the kernel; 0 if it does not exist."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def session(leader: int, root: int) -> list[int]:
    """Return the processes of a session that descend from ``root``, parents before children."""
    members = []
    for pid in descendants(root):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                members.append(pid)
    return members


def signal_session(leader: int, number: int, root: int) -> None:
    """Send a signal to every process of the session of ``leader`` that descends from ``root``.

    The leader's process group receives it atomically; other groups of the session follow.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in session(leader, root):
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != leader:
                os.kill(pid, number)


def signal_handlers(leader: int, number: int, root: int) -> None:
    """Send a signal to the processes of a session that handle it or wait for it.

    It would end the others, e.g. helpers that the program has started.
    """
    for pid in session(leader, root):
        # The main thread blocks it if another thread waits for it, or reads a signalfd.
        if _catches(pid, number, "SigCgt", "SigBlk"):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def signal_parents(leader: int, number: int, root: int) -> bool:
    """Send a signal to a session, but not to the children of a process that handles it.

    Such a process may still need its children, e.g. to load data for its current step. A shell
    waits for its command before it handles a signal, so its children receive it too. Returns False
    if there are no such children, so all processes have received the signal.
    """
    members = session(leader, root)
    spared: set[int] = set()
    for pid in members:
        if pid not in spared and _catches(pid, number, "SigCgt") and not _is_shell(pid):
            spared.update(descendants(pid))
    if spared.isdisjoint(members):
        signal_session(leader, number, root)
        return False
    for pid in members:
        if pid not in spared:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
    return True


def _catches(pid: int, number: int, *masks: str) -> bool:
    """Return whether a signal is in one of these masks of ``/proc/PID/status``."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in masks and int(value, 16) >> (number - 1) & 1:
                return True
    return False


def _is_shell(pid: int) -> bool:
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return True
    return program.removesuffix(" (deleted)") in _SHELLS


def kill_all(pids: Iterable[int]) -> list[int]:
    """Send SIGKILL to processes; return the ones that were not yet dead.

    A process can fork in the meantime: call it again until none is left.
    """
    alive = [pid for pid in pids if not is_zombie(pid)]
    for pid in alive:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return alive


def end_descendants(limit_s: float) -> None:
    """Kill and reap all descendants of this process; some may be left after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while kill_all(descendants(os.getpid())) and time.monotonic() < deadline:
        reap_all()
        time.sleep(_KILL_AGAIN_S)
    reap_all()


def reap_all(spare: Collection[int] = ()) -> None:
    """Reap every dead child, except ``spare``."""
    if spare:  # their exit codes belong to another part of this process
        for pid in children(os.getpid()):
            if pid not in spare:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
