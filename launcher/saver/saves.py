"""Writes the checkpoints that workers request, and one at the end of the job."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeVar

from ...events.checkpoints import (
    CheckpointFailed,
    CheckpointNotRemoved,
    CheckpointWritten,
    SnapshotUnsaved,
)
from ...events.event import Event
from ...training.worker import snapshot_page as page
from .client import SaverClient
from .order import WriteOrder, WriteResult

T = TypeVar("T")
_UNFINISHED = "not finished within --shutdown-timeout"
_LOST = "a node was lost before it had written its shards"
_COMES_S = 5.0
"""Time to finish a checkpoint of several nodes after one of them is lost."""


class HeldShard(NamedTuple):
    """A shard of a snapshot in a buffer of this node."""

    local_rank: int
    buffer: int
    fd: int
    """The descriptor of the buffer; its owner closes it."""
    entry: page.Entry
    page_fd: int = -1
    """The descriptor of the page in which its worker reads the progress; -1 if none."""


class NodeShards(NamedTuple):
    """The shards of a checkpoint that this node writes."""

    shards: tuple[HeldShard, ...]
    """One replicated shard, or shards of some or all ranks, by rank."""
    destination: page.Destination
    attempt: str = ""
    """The attempt, equal on all nodes, if other nodes write the other shards; else empty."""

    @property
    def step(self) -> int:
        """Completed steps."""
        return self.shards[0].entry.step

    def order(self, job: str = "", *, pages: int = 0, is_last: bool = False) -> WriteOrder:
        """Return the order to write them.

        ``is_last``: it is the checkpoint at the end of the job, unless a newer one exists.
        """
        entries = tuple(shard.entry for shard in self.shards)
        attempt = self.attempt or f"{entries[0].rank}-{entries[0].generation}"
        return WriteOrder(
            self.destination, entries, attempt, job, unless_newer=is_last, pages=pages
        )


class Saves:
    """Writes checkpoints with the saver of this node, one at a time."""

    def __init__(self, report: Callable[[Event], None], job: str = "") -> None:
        self._report, self._job = report, job
        self._saver = SaverClient()
        self._warned = ""
        """The last warning about an old checkpoint."""
        self._writing: asyncio.Task[None] | None = None
        self._is_distributed = False
        """Whether several nodes write the current or last checkpoint."""
        self._cancel_reason = _UNFINISHED
        """Why it failed, if it is canceled."""
        self._newest: dict[str, int] = {}
        """Step of the newest checkpoint written here, by directory."""
        self._last = -1
        """The step of the last complete checkpoint, in any directory."""
        self._written_at = 0.0
        """When it was complete (monotonic clock)."""
        self.interval_s: float | None = None
        """Seconds between the last two complete checkpoints; None if there are fewer."""

    @property
    def pid(self) -> int | None:
        """The saver's process ID; None if it does not run."""
        return self._saver.pid

    def begin(self, snapshot: NodeShards, ended: Callable[[str], None]) -> bool:
        """Start a checkpoint that a worker requested; return False if another is being written.

        The buffers must not change until ``ended`` is called with the error, or an empty string.
        """
        if self._writing is not None and not self._writing.done():
            return False
        with ExitStack() as files:
            fds = []
            pages = [shard.page_fd for shard in snapshot.shards if shard.page_fd >= 0]
            for fd in (*(shard.fd for shard in snapshot.shards), *pages):
                fds.append(os.dup(fd))  # this node may become a spare and close them
                files.callback(os.close, fds[-1])
            writing = self._write(snapshot, fds, ended, files.pop_all())
        self._writing = asyncio.get_running_loop().create_task(writing)
        self._is_distributed, self._cancel_reason = bool(snapshot.attempt), _UNFINISHED
        return True

    def note(self, step: int, directory: str) -> None:
        """Record a complete checkpoint."""
        now = time.monotonic()
        if self._last >= 0:
            self.interval_s = now - self._written_at
        self._newest[directory] = self._last = step
        self._written_at = now

    @property
    def newest(self) -> tuple[int, float]:
        """Step and age in seconds of the last checkpoint written here; step 0 if none."""
        if self._last <= 0:
            return 0, 0.0
        return self._last, time.monotonic() - self._written_at

    def node_lost(self) -> None:
        """Cancel a checkpoint of several nodes unless it is complete soon: a node was lost."""
        if self._is_distributed and self._writing is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(_COMES_S, self._cancel, self._writing)

    def _cancel(self, writing: "asyncio.Task[None]") -> None:
        if not writing.done():
            self._cancel_reason = _LOST
            writing.cancel()
            self._saver.close()

    async def _write(
        self,
        snapshot: NodeShards,
        fds: Sequence[int],
        ended: Callable[[str], None],
        files: ExitStack,
    ) -> None:
        step, directory, written = snapshot.step, snapshot.destination.folder, None
        order = snapshot.order(self._job, pages=len(fds) - len(snapshot.shards))
        try:
            written = await self._saver.write(order, fds)
        finally:
            written = written or WriteResult(self._cancel_reason)
            files.close()
            if written.error:
                newest = self._newest.get(directory, -1)
                self._report(CheckpointFailed(step, written.error, newest))
            elif order.is_first:
                self.note(step, directory)
                self._report(_written(step, written))
            self._warn(written)
            ended(written.error)

    async def conclude(self, limit_s: float, snapshot: NodeShards | None) -> None:
        """Finish the current checkpoint, then write a last one, within ``limit_s`` for both.

        ``snapshot`` is the newest one, if the job is incomplete; None to write no last checkpoint.
        """
        now = asyncio.get_running_loop().time()
        deadline = now + limit_s
        if snapshot is not None and not snapshot.destination.at_breakpoint:
            snapshot = None
        if self._writing is not None:
            # A lost node never writes its shards: leave time for the last checkpoint.
            is_cut_short = snapshot is not None and self._is_distributed
            await _within(self._writing, now + limit_s / 2 if is_cut_short else deadline)
            if self._writing.cancelled():
                self._saver.close()
        if snapshot is None:
            return
        step = snapshot.step
        if step <= self._newest.get(snapshot.destination.folder, -1):
            return  # other nodes find it on the storage
        order = snapshot.order(self._job, is_last=True)
        writing = asyncio.ensure_future(
            self._saver.write(order, [one.fd for one in snapshot.shards])
        )
        written = await _within(writing, deadline) or WriteResult(_UNFINISHED)
        if written.error:
            self._report(SnapshotUnsaved(step, written.error))
        elif written.bytes:
            self._report(_written(step, written, is_last=True))
        self._warn(written)

    def _warn(self, written: WriteResult) -> None:
        """Report an old checkpoint that could not be removed, once."""
        if written.warning and written.warning != self._warned:
            self._warned = written.warning
            self._report(CheckpointNotRemoved(written.warning))

    def close(self) -> None:
        """Kill the saver, even if it is writing."""
        self._saver.close()


def _written(step: int, written: WriteResult, *, is_last: bool = False) -> CheckpointWritten:
    return CheckpointWritten(step, written.path, written.bytes, written.seconds, is_last)


async def _within(action: "asyncio.Future[T]", deadline: float) -> "T | None":
    """Wait for a task until the deadline, then cancel it. Return None if it was canceled."""
    left_s = deadline - asyncio.get_running_loop().time()
    try:
        await asyncio.wait([action], timeout=max(0.0, left_s))
    finally:
        action.cancel()
    await asyncio.wait([action])
    return None if action.cancelled() else action.result()
