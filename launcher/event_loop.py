"""Runs a coroutine on an event loop that closes quietly."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine as ``asyncio.run`` does, for one that handles signals.

    ``asyncio`` closes the socket that signals wake its loop through before it takes the signal
    handlers away. A signal in between (SIGCHLD of a spawner that was killed) would print an
    "Exception ignored when trying to write to the signal wakeup fd", so none is written any
    more once the coroutine has ended.
    """

    async def quietly() -> T:
        try:
            return await main
        finally:
            signal.set_wakeup_fd(-1)

    return asyncio.run(quietly())
