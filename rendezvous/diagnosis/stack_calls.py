"""Requests of the master to all nodes of a round for the stacks or steps of their workers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ..protocol.stacks import RankStack, StackOrder, StackReport
from ..protocol.steps import RankSteps, StepsOrder, StepsReport

REPORTS_S = 4.0
"""Time limit for the nodes' reports: longer than for workers to respond to a node."""


class Whereabouts(Struct, frozen=True):
    """The reports of the nodes."""

    stacks: tuple[RankStack, ...]
    silent: tuple[str, ...]
    """Nodes that have not responded, as text."""
    steps: tuple[RankSteps, ...] = ()
    """Steps of ranks that have reported progress, if they were requested."""
    checkpoint: tuple[int, float] = (0, 0.0)
    """If requested, step of the newest checkpoint (0 if none) and its age in seconds."""


class _Call:
    def __init__(self, nodes: Mapping[int, str], away: Sequence[str]) -> None:
        self.expected = dict(nodes)
        """Names of the nodes that have not responded, by stream."""
        self.missing = list(away)
        self.reports: list[StackReport | StepsReport] = []
        self.is_complete = asyncio.Event()
        self._look()

    def take(self, link: int, report: StackReport | StepsReport) -> None:
        if self.expected.pop(link, None) is not None:
            self.reports.append(report)
            self._look()

    def gone(self, link: int) -> None:
        if (name := self.expected.pop(link, None)) is not None:
            self.missing.append(name)
            self._look()

    def _look(self) -> None:
        if not self.expected:
            self.is_complete.set()

    def whereabouts(self) -> Whereabouts:
        stacks: list[RankStack] = []
        steps: list[RankSteps] = []
        checkpoint = (0, 0.0)
        for report in self.reports:
            if isinstance(report, StackReport):
                stacks += report.stacks
            else:
                steps += report.workers
                written = (report.checkpoint_step, report.checkpoint_age_s)
                checkpoint = max(checkpoint, written, key=lambda one: one[0])
        silent = (*self.missing, *(self.expected[link] for link in sorted(self.expected)))
        return Whereabouts(tuple(stacks), silent, tuple(steps), checkpoint)


class StackCalls:
    """Sends requests; concurrent calls for stacks, or for the same steps, share one response."""

    def __init__(self, send: Callable[[int, StackOrder | StepsOrder], None]) -> None:
        self._send = send
        self._number = 0
        self._calls: dict[int, _Call] = {}
        """Pending calls, by the number of their order."""
        self._asking: dict[object, asyncio.Task[Whereabouts]] = {}

    async def ask(
        self,
        order: StackOrder | StepsOrder,
        nodes: Mapping[int, str],
        away: Sequence[str] = (),
        timeout_s: float = REPORTS_S,
    ) -> Whereabouts:
        """Send an order to nodes; return the reports that arrive in time.

        The order gets its number here; it is not sent if a pending one has the same answer.
        ``nodes`` has their names by stream, ``away`` the names of nodes without a stream.
        """
        # A node collects stacks for one order at a time, and does not respond to another one.
        key = StackOrder if isinstance(order, StackOrder) else frozenset(nodes)
        if key not in self._asking:
            asking = asyncio.create_task(self._ask(order, nodes, away, timeout_s))
            asking.add_done_callback(lambda _: self._asking.pop(key))
            self._asking[key] = asking
        return await asyncio.shield(self._asking[key])

    def take(self, link: int, report: StackReport | StepsReport) -> None:
        """Process a report of a stream."""
        if (call := self._calls.get(report.number)) is not None:
            call.take(link, report)

    def gone(self, link: int) -> None:
        """Record that a stream has ended."""
        for call in self._calls.values():
            call.gone(link)

    async def _ask(
        self,
        order: StackOrder | StepsOrder,
        nodes: Mapping[int, str],
        away: Sequence[str],
        timeout_s: float,
    ) -> Whereabouts:
        self._number += 1
        call = self._calls[self._number] = _Call(nodes, away)
        order = replace(order, number=self._number)
        for link in nodes:
            self._send(link, order)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(call.is_complete.wait(), timeout_s)
        del self._calls[order.number]
        return call.whereabouts()
