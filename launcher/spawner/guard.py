"""The guard: a process between agent and spawner, for the case that both are killed at once.

    agent ── guard ── spawner ── workers

The guard is a subreaper: when the spawner dies, the processes below it become children of the
guard, which kills them. One of the three is enough: agent and spawner too kill what is left when
they find that they are alone. The guard has a name of its own, so that ``killall ft-run`` and
``pkill -f ft-run`` do not hit it. It only waits, and shares its memory pages with the agent.
"""

import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from ..processes.prctl import become_subreaper
from ..processes.tree import end_descendants
from .spawner import ORPHANS_S, leave_terminal, spawner_main

NAME = "ftrun-guard"

_SPAWNER_S = ORPHANS_S + 5.0
"""How long the spawner may take to end what is left when the agent is gone."""


def guard_main(channel: socket.socket) -> NoReturn:
    """Start the spawner and guard it; never returns.

    Args:
        channel: the spawner's end of the socket to the agent. The guard keeps it open too, so
            that the agent learns of the spawner's end when all processes below it are gone.
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
            spawner = 0  # there is no process for a guard: go on with the spawner alone
        if spawner == 0:
            os.close(spawner_lives)
            spawner_main(channel, guard)
        _close_all_but(channel.fileno(), spawner_lives)
        _show_name()
        _wait(channel.fileno(), spawner_lives, spawner)
        end_descendants(ORPHANS_S)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _wait(channel: int, spawner_lives: int, spawner: int) -> None:
    """Return when the spawner is dead, or should be. It is not reaped: its number stays its own."""
    poll = select.poll()
    for fd in (channel, spawner_lives):
        poll.register(fd, 0)  # what is waited for is the other end's close
    if spawner_lives in dict(poll.poll()):
        return
    # The agent is gone. The spawner sees that too, but not while it is stopped.
    os.kill(spawner, signal.SIGCONT)
    poll.unregister(channel)
    poll.poll(_SPAWNER_S * 1000)


def _close_all_but(*kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, *kept):
            with suppress(OSError):  # the listing's own descriptor
                os.close(int(name))


def _show_name() -> None:
    from ..processes.title import set_process_title  # the spawner does not need it

    with suppress(OSError):
        set_process_title([NAME])
        with open("/proc/self/comm", "w") as comm:
            comm.write(NAME)
