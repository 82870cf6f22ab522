"""Sends the stacks of this node's workers when the master requests them."""

import asyncio
from collections.abc import Callable
from functools import partial

from ...rendezvous.protocol.stacks import RankStack, StackReport
from ...tasks import show_bug
from .collect import AskedWorker, collect


class StackReports:
    """The stack reports of one node, one at a time."""

    def __init__(self, host: str, send: Callable[[StackReport], None]) -> None:
        self._host = host
        self._send = send
        self._task: asyncio.Task[None] | None = None

    def report(self, number: int, node_rank: int, workers: tuple[AskedWorker, ...]) -> None:
        """Collect the stacks of the workers, and send them.

        Args:
            number: the number of the order.
            node_rank: the rank of this node.
            workers: the workers that have not exited.
        """
        if self._task is not None and not self._task.done():
            return  # the master sends one request at a time; this one was cancelled
        self._task = asyncio.create_task(self._report(number, node_rank, workers))
        self._task.add_done_callback(partial(show_bug, "a report of stacks"))

    def close(self) -> None:
        """Stop, and send no further report."""
        if self._task is not None:
            self._task.cancel()

    async def _report(self, number: int, node_rank: int, workers: tuple[AskedWorker, ...]) -> None:
        stacks: tuple[RankStack, ...] = ()
        if workers:
            stacks = await collect(workers, node_rank, self._host)
        self._send(StackReport(number, stacks))
