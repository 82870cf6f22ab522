"""Signal handling of a node: by the agent, and after its end, when signals only end waits."""

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any

from ..startup import unblock

SAME_S = 0.2
"""A signal repeated within this time is a duplicate: ``timeout`` signals its child and its process
group, and wrappers forward a Ctrl-C that the terminal has sent to all processes."""

_acts: dict[int, Callable[[], object]] = {}
"""The current action of each signal."""


def hear(
    loop: asyncio.AbstractEventLoop,
    signals: Collection[signal.Signals],
    signalled: Callable[[int], None],
    pass_on: Callable[[int], None],
) -> None:
    """Handle signals from now on; ignored signals stay ignored.

    ``signalled`` receives each signal that asks this node to leave, except duplicates; ``pass_on``
    receives SIGUSR1 and SIGUSR2, which are for the workers.
    """
    heard_at: dict[int, float] = {}

    def take(number: int) -> None:
        now = time.monotonic()
        if now - heard_at.get(number, -math.inf) >= SAME_S:
            heard_at[number] = now
            signalled(number)

    for number in heard(signals):
        _handle(loop, number, partial(take, number))
    passed_on = {signal.SIGUSR1, signal.SIGUSR2}.difference(signals)
    for number in passed_on:
        loop.add_signal_handler(number, pass_on, number)
    unblock({*heard(signals), *passed_on, signal.SIGCHLD})


def _handle(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, act: Callable[[], object]
) -> None:
    """Handle a signal in the loop, including one that has arrived but is not handled yet.

    To replace a handler of ``loop.add_signal_handler``, ``remove_signal_handler`` must be called.
    It restores the default action: a signal would then end a process that has another thread. And
    the loop wakes up for every signal while it handles some with ``add_signal_handler``.
    """
    _acts[number] = act
    signal.signal(number, lambda *_: loop.call_soon_threadsafe(lambda: _acts[number]()))


def heard(signals: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals that were not ignored at process start (nohup, a shell's ``&``)."""
    return [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]


async def unless_asked(
    awaited: Coroutine[Any, Any, object],
    signals: Iterable[signal.Signals],
    timeout_s: float | None = None,
    *,
    times: int = 1,
) -> bool:
    """Wait for a coroutine, at most until ``times`` signals; return whether they came.

    Ignored signals stay ignored. A coroutine that does not end in time is canceled.
    """
    loop = asyncio.get_running_loop()
    asked, left = asyncio.Event(), times

    def ask() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            asked.set()

    for number in heard(signals):
        _handle(loop, number, ask)
    tasks = asyncio.create_task(asked.wait()), asyncio.create_task(awaited)
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    return asked.is_set()


def hurry_on(signals: Iterable[signal.Signals], hurry: Callable[[], None]) -> None:
    """Let signals only end waits, even while the loop closes: the exit code is known."""
    for number in heard(signals):
        _acts[number] = hurry
        signal.signal(number, lambda *_: hurry())


def ignore(signals: Iterable[signal.Signals]) -> None:
    """Ignore signals: the exit code is known, and the process is about to exit."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
