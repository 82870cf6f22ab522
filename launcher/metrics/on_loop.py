"""Reads the values of a scrape, which a thread answers, on the event loop."""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")
_LOOP_S: Final = 3.0
"""Time limit for the loop, which answers within a millisecond unless it is overloaded."""


class NotReadyError(Exception):
    """Raised if the values cannot be read in time; the message is the response."""


def on_loop(loop: asyncio.AbstractEventLoop, read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a coroutine function that runs on a loop.

    Raises:
        NotReadyError: If the loop has ended, or there is no result in time.
    """
    result: concurrent.futures.Future[T] = concurrent.futures.Future()

    async def call() -> None:
        try:
            result.set_result(await read())
        except Exception as error:
            result.set_exception(error)

    try:
        loop.call_soon_threadsafe(lambda: loop.create_task(call()))
        return result.result(_LOOP_S)
    except concurrent.futures.TimeoutError:
        raise NotReadyError("this process is overloaded") from None
    except RuntimeError:  # the loop is closed
        raise NotReadyError("this process ends") from None
