"""Waits until GPU memory of ended workers is free: the next workers would run out of memory.

The kernel unpins the memory of a process page by page, which takes long for hundreds of GB. A
separate process asks the driver, since a driver that hangs must not stop the agent. Without a
driver, nothing happens.
"""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from ...events.workers import GpuMemoryHeld
from ...tasks import show_bug
from . import nvml

Used = Mapping[str, int]
"""Bytes in use, by the UUID of the GPU."""

_SLACK: Final = 1_000_000_000
"""Memory that other processes on the same GPU may have taken meanwhile."""
_LIMIT_S: Final = 60.0
_NO_PROGRESS_S: Final = 10.0
"""Memory that does not shrink for this long does not belong to the ended workers."""
_ASK_AGAIN_S: Final = 0.5
_DIES_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.01


async def ask_used() -> Used:
    """Return what is in use on the GPUs that the workers can see.

    Raises:
        NvmlFailedError: there is no answer, or not in time.
    """
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    command, reader = nvml.command("used"), asyncio.StreamReader()
    try:
        # asyncio's Process would warn if the agent, which reaps every child, is faster.
        process = subprocess.Popen(  # noqa: ASYNC220 - to start it takes no longer than asyncio's
            command, stdin=nothing, stdout=pipe, stderr=nothing
        )
    except OSError as error:
        raise nvml.NvmlFailedError(error.strerror or str(error)) from error
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        output = await asyncio.wait_for(reader.read(), nvml.DEADLINE_S)
    except asyncio.TimeoutError:
        raise nvml.NvmlFailedError("the driver hangs") from None
    finally:
        transport.close()
        process.kill()
        tries = round(_DIES_S / _LOOK_AGAIN_S)
        while process.poll() is None and tries:  # it may be in uninterruptible sleep
            tries -= 1
            await asyncio.sleep(_LOOK_AGAIN_S)
    used: Used = nvml.answer_of(output)
    return used


class GpuMemory:
    """The memory of this node's GPUs, before its first workers and after each round."""

    def __init__(
        self,
        note: Callable[[GpuMemoryHeld], None],
        *,
        has_driver: Callable[[], bool] = nvml.has_library,
        ask: Callable[[], Awaitable[Used]] = ask_used,
    ) -> None:
        """Query nothing yet.

        Args:
            note: receives events.
            has_driver: returns whether there may be GPUs.
            ask: returns the memory in use; raises ``NvmlFailedError``.
        """
        self._note = note
        self._has_driver = has_driver
        self._ask = ask
        self._before: asyncio.Task[Used] | None = None
        self._waiting: asyncio.Task[None] | None = None

    def remember(self) -> None:
        """Record the memory in use before workers start."""
        if self._before is None and self._has_driver():
            self._before = asyncio.create_task(self._in_use())

    def when_free(self, then: Callable[[], None]) -> bool:
        """Call ``then`` when the memory of ended workers is free, or stays in use for too long.

        Returns:
            Whether there is anything to wait for; if not, ``then`` is not called.
        """
        if self._before is None:
            return False

        def over(task: "asyncio.Task[None]") -> None:
            show_bug("the wait for the memory of GPUs", task)
            if not task.cancelled():
                then()

        self._waiting = asyncio.create_task(self._wait(self._before))
        self._waiting.add_done_callback(over)
        return True

    def close(self) -> None:
        """Stop waiting."""
        for task in (self._before, self._waiting):
            if task is not None:
                task.cancel()

    async def _in_use(self) -> Used:
        try:
            return await self._ask()
        except nvml.NvmlFailedError:
            return {}  # after an error the agent continues as without GPUs

    async def _wait(self, asked_before: "asyncio.Task[Used]") -> None:
        before = await asked_before
        loop = asyncio.get_running_loop()
        begun = progress_at = loop.time()
        least: float = float("inf")
        while True:
            now = await self._in_use()
            left = {uuid: now[uuid] - used for uuid, used in before.items() if uuid in now}
            held = {uuid: size for uuid, size in left.items() if size > _SLACK}
            if not held:
                return
            if sum(held.values()) < least:
                least, progress_at = sum(held.values()), loop.time()
            if loop.time() - progress_at > _NO_PROGRESS_S or loop.time() - begun > _LIMIT_S:
                break
            await asyncio.sleep(_ASK_AGAIN_S)
        self._note(GpuMemoryHeld(held))
