"""The guard: a process between agent and spawner, in case both are killed simultaneously.

    agent ── guard ── spawner ── workers

The guard is a subreaper: when the spawner dies, the processes below it become children of the
guard, which kills them. One of the three is enough: agent and spawner also kill the remaining
processes when they find that they are alone. The guard has its own process name, so that ``killall
ft-run`` and ``pkill -f ft-run`` do not match it. It only waits, and shares its memory pages with
the agent.
"""

import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from ..processes.ipc import close_all_but
from ..processes.prctl import become_subreaper
from ..processes.title import set_process_title
from ..processes.tree import end_descendants
from .spawner import ORPHANS_S, leave_terminal, spawner_main

NAME = "ftrun-guard"

_SPAWNER_S = ORPHANS_S + 5.0
"""Time limit for the spawner to end the remaining processes after the agent's exit."""
MOST_S = _SPAWNER_S + ORPHANS_S
"""The maximum time from the agent's exit to that of the guard."""


def guard_main(channel: socket.socket) -> NoReturn:
    """Start the spawner and guard it; never returns.

    The guard keeps ``channel``, the spawner's end of the socket to the agent, open too, so that the
    agent reads end-of-file only when all processes below the spawner have exited.
    """
    status = 1
    guard = os.getpid()
    try:
        leave_terminal()
        become_subreaper()
        spawner_lives, _held = os.pipe2(os.O_CLOEXEC)
        try:
            spawner = os.fork()
        except OSError:
            spawner = 0  # no process is available for a guard: continue with the spawner alone
        if spawner == 0:
            os.close(spawner_lives)
            spawner_main(channel, guard)
        close_all_but(channel.fileno(), spawner_lives)
        _show_name()
        _wait(channel.fileno(), spawner_lives, spawner)
        end_descendants(ORPHANS_S)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _wait(channel: int, spawner_lives: int, spawner: int) -> None:
    """Return when the spawner is dead or overdue. It is not reaped, so its PID is not reused."""
    poll = select.poll()
    for fd in (channel, spawner_lives):
        poll.register(fd, 0)  # wait for the other end to close
    if spawner_lives in dict(poll.poll()):
        return
    # The agent has exited. The spawner detects that too, unless it is stopped.
    os.kill(spawner, signal.SIGCONT)
    poll.unregister(channel)
    poll.poll(_SPAWNER_S * 1000)


def _show_name() -> None:
    with suppress(OSError):
        set_process_title([NAME])
        with open("/proc/self/comm", "w") as comm:
            comm.write(NAME)
