"""Errors of tasks that nothing waits for, and calls that the end of the process does not await."""

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class NoThreadError(OSError):
    """Raised if the kernel starts no thread."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "no thread can be started")


async def in_thread(call: Callable[[], T]) -> T:
    """Call a short function in a thread, or on the event loop if no thread can be started."""
    try:
        return await in_daemon_thread(call)
    except NoThreadError:
        return call()


def in_daemon_thread(call: Callable[[], T]) -> "asyncio.Future[T]":
    """Call a function in a thread that does not delay the end of the process; return its result.

    The result is a ``NoThreadError`` if the kernel starts no thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(take: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            take(outcome)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = future.set_result, call()
        except Exception as error:  # it is raised where the result is awaited
            outcome = future.set_exception, error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(deliver, *outcome)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError:
        future.set_exception(NoThreadError())
    return future


def show_bug(what: str, task: "asyncio.Task[Any]") -> None:
    """Show the error of a task at once; without this, asyncio shows it when the task is forgotten.

    It is meant for ``add_done_callback``.

    Args:
        what: failed, if the task has.
        task: has ended; its errors are bugs of ft-run.
    """
    error = None if task.cancelled() else task.exception()
    if error is not None:
        task.get_loop().call_exception_handler(
            {"message": f"{what} failed, which is a bug of ft-run", "exception": error}
        )
