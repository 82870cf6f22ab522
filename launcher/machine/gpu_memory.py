"""Waits until the GPU memory of ended workers is free: the next workers would run out of memory.

The kernel unpins the memory of a process page by page, which takes long for hundreds of GB. For
NVIDIA GPUs, a process queries the driver (``gpu_watch``); for AMD, the kernel's files are read.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from ...events.event import Event
from ...events.workers import GpuMemoryHeld, GpuXid
from ...tasks import NoThreadError, in_daemon_thread, show_bug
from . import nvml
from .accelerators import AcceleratorKind, find_accelerators
from .gpu_watch import GpuWatch, Used

_SLACK: Final = 1_000_000_000
"""Bytes that other processes on the same GPU may have allocated in the meantime."""
_LIMIT_S: Final = 60.0
_NO_PROGRESS_S: Final = 10.0
"""If memory in use does not shrink for this long, it does not belong to the ended workers."""
_ASK_AGAIN_S: Final = 0.5
_XIDS_OF_KILLS: Final = frozenset({43, 45})
"""Errors that the end of a process causes. Source: NVIDIA's "XID errors"."""


def amd_used(root: Path = Path("/")) -> Used:
    """Return the bytes in use on the visible AMD GPUs, by PCI address."""
    found = {}
    for gpu in find_accelerators(AcceleratorKind.AMD, os.environ, root=root).devices:
        file = root / f"sys/bus/pci/devices/{gpu.pci_address}/mem_info_vram_used"
        try:
            found[str(gpu.pci_address)] = int(file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return found


class GpuMemory:
    """Memory of this node's GPUs, before the first workers and after each round."""

    def __init__(
        self,
        note: Callable[[Event], None],
        *,
        has_driver: Callable[[], bool] = nvml.has_driver,
        ask: Callable[[], Awaitable[Used]] | None = None,
    ) -> None:
        self._note = note
        self._watch = GpuWatch(self._note_xid)
        self._has_driver = has_driver
        self._ask = ask or self._ask_driver
        self._before: asyncio.Task[Used] | None = None
        self._waiting: asyncio.Task[None] | None = None

    def remember(self) -> None:
        """Record the memory in use before workers start."""
        if self._before is None and self._has_driver():
            self._before = asyncio.create_task(self._in_use())

    def when_free(self, then: Callable[[], None]) -> bool:
        """Call ``then`` when the memory of ended workers is free, or stays in use for too long.

        Returns False, without a call of ``then``, if there is nothing to wait for.
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
        self._watch.close()

    def _note_xid(self, number: int, uuid: str, xid: int) -> None:
        if xid not in _XIDS_OF_KILLS:
            self._note(GpuXid(number, uuid, xid))

    async def _ask_driver(self) -> Used:
        if nvml.has_library():
            return await self._watch.used()
        return await in_daemon_thread(amd_used)

    async def _in_use(self) -> Used:
        try:
            return await self._ask()
        except (nvml.NvmlFailedError, NoThreadError):
            return {}  # after an error the agent continues as without GPUs

    async def _wait(self, asked_before: "asyncio.Task[Used]") -> None:
        before = await asked_before
        if not before:  # e.g. the driver hangs; waiting for it would delay each restart
            return
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
