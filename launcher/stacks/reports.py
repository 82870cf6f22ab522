"""Sends the stacks of this node's workers when the master requests them."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from ...rendezvous.protocol.collectives import (
    GROUPS_MAX,
    GROUPS_OF_NODE_MAX,
    RankCollectives,
)
from ...rendezvous.protocol.stacks import RankStack, StackReport
from ...tasks import show_bug
from ...values import replace
from . import recorded
from .collect import AskedWorker, collect
from .flight_recorder import FlightRecorders


class StackReports:
    """The stack reports of one node, one at a time."""

    def __init__(
        self,
        host: str,
        send: Callable[[StackReport], None],
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._host = host
        self._send = send
        self._environ = environ
        self._task: asyncio.Task[None] | None = None
        self._inquiry = 0
        self._recorders: FlightRecorders | None = None
        """Those of the present inquiry, if there are any."""
        self._collectives: dict[int, RankCollectives | None] = {}
        """What they have recorded, by rank; None: the file is unusable."""

    def report(
        self, number: int, node_rank: int, workers: tuple[AskedWorker, ...], inquiry: int = 0
    ) -> None:
        """Collect the stacks of the workers, and send them."""
        if self._task is not None and not self._task.done():
            return  # the master sends one request at a time; this one was cancelled
        self._task = asyncio.create_task(self._report(number, node_rank, workers, inquiry))
        self._task.add_done_callback(partial(show_bug, "a report of stacks"))

    def close(self) -> None:
        """Stop, and send no further report."""
        if self._task is not None:
            self._task.cancel()

    async def _report(
        self, number: int, node_rank: int, workers: tuple[AskedWorker, ...], inquiry: int
    ) -> None:
        stacks: tuple[RankStack, ...] = ()
        if workers:
            if inquiry and inquiry != self._inquiry:
                self._ask_recorders(workers, inquiry)
            stacks = await collect(workers, node_rank, self._host)
            if inquiry and self._recorders is not None:
                most = max(1, min(GROUPS_MAX, GROUPS_OF_NODE_MAX // len(workers)))
                await self._read(self._recorders, most)
                stacks = tuple(
                    replace(stack, collectives=self._collectives.get(stack.rank))
                    for stack in stacks
                )
        self._send(StackReport(number, stacks))

    def _ask_recorders(self, workers: tuple[AskedWorker, ...], inquiry: int) -> None:
        self._inquiry, self._collectives = inquiry, {}
        recorders = FlightRecorders(self._environ)
        now = asyncio.get_running_loop().time()
        has_some = recorders.ask((worker.rank for worker in workers), now)
        self._recorders = recorders if has_some else None

    async def _read(self, recorders: FlightRecorders, most: int) -> None:
        """Read the files that are complete."""
        recorders.are_writing(asyncio.get_running_loop().time())
        for rank in recorders.written:
            if rank not in self._collectives:
                path = f"{recorders.files}{rank}"
                self._collectives[rank] = await asyncio.to_thread(_summary, path, most)


def _summary(path: str, most: int) -> RankCollectives | None:
    try:
        return recorded.summary(recorded.read(path), most)
    except recorded.BadDumpError:
        return None
