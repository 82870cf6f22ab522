"""Streams without a first message: limited in time and number."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

FIRST_WORD_S = 10.0
"""An agent sends its first message immediately."""

MOST = 1_000
"""Simultaneous streams on all connections; each takes some 30 kB."""


class SilentStreams:
    """The streams of one server that have not received a message."""

    def __init__(self, limit_s: float = FIRST_WORD_S, most: int = MOST) -> None:
        self._limit_s = limit_s
        self._most = most
        self._waiting: dict[asyncio.Task[Any], None] = {}
        """The tasks that serve them, oldest first."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def first_word(self, read: Callable[[], Awaitable[Any]]) -> bytes:
        """Return the first message of the stream that the running task serves.

        ``read`` returns the next message, or ``grpc.aio.EOF``.

        Raises:
            TimeoutError: If it did not arrive in time, or too many newer streams were opened.
            EOFError: If the stream ended without a message.
        """
        task = asyncio.current_task()
        assert task is not None
        if len(self._waiting) >= self._most:
            self._end(next(iter(self._waiting)))
        self._waiting[task] = None
        timer = asyncio.get_running_loop().call_later(self._limit_s, self._end, task)
        try:
            message = await read()
        except asyncio.CancelledError:
            if task in self._waiting:
                raise  # the stream broke, or the server stops
            raise TimeoutError from None
        finally:
            timer.cancel()
            self._waiting.pop(task, None)
        if not isinstance(message, bytes):
            raise EOFError
        return message

    def _end(self, task: "asyncio.Task[Any]") -> None:
        if self._waiting.pop(task, False) is None:
            task.cancel()
