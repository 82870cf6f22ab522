"""What becomes of an error in a task that nothing waits for."""

import asyncio
from typing import Any


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
