"""Processes that become children of the agent when the spawner is killed."""

import asyncio
import os
import signal
from collections.abc import Collection

from ..machine.nvml import has_driver
from ..processes.dying import SURVIVES_KILL_S, Dying
from ..processes.prctl import become_subreaper
from ..processes.tree import descendants, kill_all, reap_all

_KILL_AGAIN_S = 0.02


def adopt_orphans(loop: asyncio.AbstractEventLoop) -> None:
    """Adopt every descendant whose parent dies from now on, and reap it when it ends."""
    become_subreaper()
    loop.add_signal_handler(signal.SIGCHLD, reap_all)  # also children adopted as PID 1


async def kill_orphans(*, spare: Collection[int | None]) -> None:
    """Kill every descendant of this process except ``spare``; return when they are dead.

    A process that is left then is in uninterruptible sleep.
    """
    loop, left = asyncio.get_running_loop(), descendants(os.getpid())
    dying = Dying(left, loop.time(), have_devices=has_driver())
    while dying.go_on(left, loop.time()):
        until = loop.time() + SURVIVES_KILL_S
        while loop.time() < until:
            left = kill_all(pid for pid in descendants(os.getpid()) if pid not in spare)
            if not left:
                return
            await asyncio.sleep(_KILL_AGAIN_S)
