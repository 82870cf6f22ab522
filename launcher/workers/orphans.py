"""Processes that become children of the agent when the spawner is killed."""

import asyncio
import os
import signal
from collections.abc import Collection
from functools import partial

from ..machine.nvml import has_driver
from ..processes.dying import SURVIVES_KILL_S, Dying
from ..processes.prctl import become_subreaper
from ..processes.tree import children, descendants, kill_all, reap_all

_KILL_AGAIN_S = 0.02


def adopt_orphans(loop: asyncio.AbstractEventLoop, *, spare: Collection[int]) -> None:
    """Adopt every descendant whose parent dies from now on, and reap it when it exits.

    ``spare`` are not reaped, because they belong to the program that runs ``main``.
    """
    become_subreaper()
    # This includes children adopted as PID 1.
    loop.add_signal_handler(signal.SIGCHLD, partial(reap_all, spare=spare))


async def kill_orphans(*, spare: Collection[int | None]) -> None:
    """Kill every descendant of this process except ``spare`` and their descendants.

    Returns when the others are dead, or after a time limit: a process that is left then is in
    uninterruptible sleep.
    """
    loop, left = asyncio.get_running_loop(), _descendants_but(spare)
    dying = Dying(left, loop.time(), have_devices=has_driver())
    while dying.go_on(left, loop.time()):
        until = loop.time() + SURVIVES_KILL_S
        while loop.time() < until:
            left = kill_all(_descendants_but(spare))
            if not left:
                return
            await asyncio.sleep(_KILL_AGAIN_S)


def _descendants_but(spare: Collection[int | None]) -> list[int]:
    own = children(os.getpid())
    return [one for pid in own if pid not in spare for one in (pid, *descendants(pid))]
