"""Checkpoints from the snapshots of this node: those that workers ask for, and one at the end."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeVar

from ...events.checkpoints import BreakpointUnsaved, CheckpointFailed, CheckpointWritten
from ...events.event import Event
from ...training.worker import snapshot_page as page
from .client import SaverClient
from .order import Order, Share, Written

T = TypeVar("T")
_UNFINISHED = "not finished within --shutdown-timeout"
_LOST = "a node was lost before it had written its shards"
_COMES_S = 5.0
"""How long what several nodes write may yet take when one of them is lost."""


class HeldShare(NamedTuple):
    """A rank's share of a snapshot, in a buffer of this node."""

    local_rank: int
    buffer: int
    fd: int
    """Of the buffer; it is not closed here."""
    entry: page.Entry
    page_fd: int = -1
    """Of the page that belongs to it, where its worker sees that the storage gets on; -1: none."""


class NodeShares(NamedTuple):
    """What this node writes of a checkpoint."""

    shares: tuple[HeldShare, ...]
    """One that is the state of all ranks, or those of some or all ranks, by rank."""
    place: page.Place
    """Where the checkpoint is to be written."""
    meeting: str = ""
    """An attempt that the savers of all nodes know alike, where others have the other shares."""

    @property
    def step(self) -> int:
        """How many steps were done."""
        return self.shares[0].entry.step

    @property
    def ranks(self) -> int:
        """Of how many ranks the checkpoint has shares."""
        first = self.shares[0].entry
        return 1 if first.is_replicated else first.world_size

    @property
    def is_first(self) -> bool:
        """Whether this node makes the checkpoint visible, and tells of it."""
        return _rank_of(self.shares[0].entry) == 0


def _rank_of(entry: page.Entry) -> int:
    """Return the rank that a share is written as: what all have is that of the first."""
    return 0 if entry.is_replicated else entry.rank


class Saves:
    """Has the saver of this node write, one checkpoint at a time; ``conclude`` at the end."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        """Write nothing yet.

        Args:
            tell: is told what becomes of checkpoints.
        """
        self._tell = tell
        self._saver = SaverClient()
        self._writing: asyncio.Task[None] | None = None
        self._is_meeting = False
        """Whether other nodes write, or have written, the same checkpoint."""
        self._why_not = _UNFINISHED
        """Why that is given up, if it is."""
        self._newest = -1
        """The step of the newest checkpoint that was written here."""
        self._written_at = 0.0
        """When that was complete, by the clock that no one sets."""

    @property
    def pid(self) -> int | None:
        """The saver's process id; None: there is none."""
        return self._saver.pid

    def begin(self, snapshot: NodeShares, ended: Callable[[str], None]) -> bool:
        """Begin to write a checkpoint that a worker asks for; return False if one is being written.

        Args:
            snapshot: what is to be written; it must stay as it is until then.
            ended: is called then, with why it was not written; empty: it is complete.
        """
        if self._writing is not None and not self._writing.done():
            return False
        with ExitStack() as files:
            fds = []
            pages = [share.page_fd for share in snapshot.shares if share.page_fd >= 0]
            for fd in (*(share.fd for share in snapshot.shares), *pages):
                fds.append(os.dup(fd))  # this node may become a spare meanwhile
                files.callback(os.close, fds[-1])
            writing = self._write(snapshot, fds, ended, files.pop_all())
        self._writing = asyncio.get_running_loop().create_task(writing)
        self._is_meeting, self._why_not = bool(snapshot.meeting), _UNFINISHED
        return True

    def note(self, step: int) -> None:
        """Note that a checkpoint is complete now."""
        self._newest, self._written_at = step, time.monotonic()

    @property
    def newest(self) -> tuple[int, float]:
        """Of the newest checkpoint that was written here, its step and age in seconds; 0: none."""
        if self._newest <= 0:
            return 0, 0.0
        return self._newest, time.monotonic() - self._written_at

    def node_lost(self) -> None:
        """A node is lost: give up what it writes with others, unless it had done its part."""
        if self._is_meeting and self._writing is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(_COMES_S, self._give_up, self._writing)

    def _give_up(self, writing: "asyncio.Task[None]") -> None:
        if not writing.done():
            self._why_not = _LOST
            writing.cancel()
            self._saver.close()

    async def _write(
        self,
        snapshot: NodeShares,
        fds: Sequence[int],
        ended: Callable[[str], None],
        files: ExitStack,
    ) -> None:
        step, written = snapshot.step, None
        try:
            pages = len(fds) - len(snapshot.shares)
            written = await self._saver.write(_order(snapshot, pages=pages), fds)
        finally:
            written = written or Written(self._why_not)
            files.close()
            if written.words:
                self._tell(CheckpointFailed(step, written.words, self._newest))
            elif snapshot.is_first:
                self.note(step)
                self._tell(_written(step, written))
            ended(written.words)

    async def conclude(self, limit_s: float, snapshot: NodeShares | None) -> None:
        """Finish what is being written, then write one more checkpoint.

        Args:
            limit_s: how long it may take.
            snapshot: of the newest one, where the job is not complete; None: nothing more is
                written.
        """
        now = asyncio.get_running_loop().time()
        deadline = now + limit_s
        if snapshot is not None and not snapshot.place.at_breakpoint:
            snapshot = None
        if self._writing is not None:
            # A node that is lost does not come to where the others wait for it.
            is_cut_short = snapshot is not None and self._is_meeting
            await _within(self._writing, now + limit_s / 2 if is_cut_short else deadline)
            if self._writing.cancelled():
                self._saver.close()
        if snapshot is None:
            return
        step = snapshot.step
        if step <= self._newest:
            return  # other nodes will see that it is there
        order = _order(snapshot, is_last=True)
        writing = asyncio.ensure_future(
            self._saver.write(order, [one.fd for one in snapshot.shares])
        )
        written = await _within(writing, deadline) or Written(_UNFINISHED)
        if written.words:
            self._tell(BreakpointUnsaved(step, written.words))
        elif written.bytes:
            self._tell(_written(step, written, is_last=True))

    def close(self) -> None:
        """End the saver, whatever it is doing."""
        self._saver.close()


def _order(snapshot: NodeShares, *, pages: int = 0, is_last: bool = False) -> Order:
    entries, place = [share.entry for share in snapshot.shares], snapshot.place
    shares = tuple(Share(_rank_of(one), one.data_bytes, one.layout_bytes) for one in entries)
    attempt = snapshot.meeting or f"{entries[0].rank}-{entries[0].generation}"
    return Order(
        place.folder,
        snapshot.step,
        place.keep,
        attempt,
        shares,
        snapshot.ranks,
        unless_newer=is_last,
        pages=pages,
    )


def _written(step: int, written: Written, *, is_last: bool = False) -> CheckpointWritten:
    return CheckpointWritten(step, written.path, written.bytes, written.seconds, is_last)


async def _within(action: "asyncio.Future[T]", deadline: float) -> "T | None":
    """Return the result of something; None: it was given up, or is now, as it took too long."""
    left_s = deadline - asyncio.get_running_loop().time()
    try:
        await asyncio.wait([action], timeout=max(0.0, left_s))
    finally:
        action.cancel()
    await asyncio.wait([action])
    return None if action.cancelled() else action.result()
