"""Processes that become children of the agent when the spawner is killed."""

import asyncio
import os
import signal
from collections.abc import Collection

from ..processes.tree import descendants, kill_all, reap_all
from ..spawner.spawner import become_subreaper
from .supervisor import SURVIVES_KILL_S

_KILL_AGAIN_S = 0.02


def adopt_orphans(loop: asyncio.AbstractEventLoop) -> None:
    """Adopt every descendant whose parent dies from now on, and reap it when it ends."""
    become_subreaper()
    loop.add_signal_handler(signal.SIGCHLD, reap_all)  # also what it adopts as PID 1 of a container


async def kill_orphans(*, spare: Collection[int | None]) -> None:
    """Kill every descendant of this process but ``spare``; return when they are dead.

    A process that is left after ``SURVIVES_KILL_S`` is in uninterruptible sleep.
    """
    for _ in range(round(SURVIVES_KILL_S / _KILL_AGAIN_S)):
        if not kill_all(pid for pid in descendants(os.getpid()) if pid not in spare):
            return
        await asyncio.sleep(_KILL_AGAIN_S)
