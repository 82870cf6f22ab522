"""Keeps the live line of a terminal for as long as something runs on the event loop."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial

from ...tasks import show_bug
from ..spawner.client import SpawnerClient
from .display import Display

_REDRAW_S = 1.0


@contextlib.asynccontextmanager
async def live_line(
    display: Display, text: Callable[[], str], spawner: SpawnerClient
) -> AsyncIterator[None]:
    """Keep the live line on a terminal, through resizes and Ctrl-Z."""
    if not display.live:
        yield
        return
    loop = asyncio.get_running_loop()

    def stopped() -> None:
        display.suspend()
        os.kill(os.getpid(), signal.SIGSTOP)

    async def redraw() -> None:
        while True:
            display.status(text())
            await asyncio.sleep(_REDRAW_S)

    display.open(spawner.set_last_words)
    loop.add_signal_handler(signal.SIGWINCH, display.resized)
    loop.add_signal_handler(signal.SIGCONT, display.refresh)
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:  # Ctrl-Z under a shell's job control
        loop.add_signal_handler(signal.SIGTSTP, stopped)
    task = asyncio.create_task(redraw())
    task.add_done_callback(partial(show_bug, "the live line"))  # does not change the outcome
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
