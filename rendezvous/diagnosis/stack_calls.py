"""Requests of the master to all nodes of a round for the stacks or steps of their workers."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from ...values import dataclass
from ..protocol.stacks import RankStack, StackOrder, StackReport
from ..protocol.steps import RankSteps, StepsOrder, StepsReport

REPORTS_S = 4.0
"""How long the nodes have for their reports: longer than workers have to answer a node."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The reports of the nodes."""

    stacks: tuple[RankStack, ...]
    silent: tuple[str, ...]
    """The nodes that have not answered, as text."""
    steps: tuple[RankSteps, ...] = ()
    """The steps of ranks that have reported progress, if they were requested."""
    checkpoint: tuple[int, float] = (0, 0.0)
    """If requested, the step of the newest checkpoint (0: none) and its age in seconds."""


class StackCalls:
    """Sends one request at a time; concurrent calls get the same answer."""

    def __init__(
        self,
        send: Callable[[int, StackOrder | StepsOrder], None],
        numbers: Iterator[int],
        order: Callable[[int], StackOrder | StepsOrder] = StackOrder,
    ) -> None:
        """Send nothing yet.

        Args:
            send: sends a message on a stream, if connected.
            numbers: of all requests of the master: their reports are told apart by them.
            order: creates the request with a number.
        """
        self._send = send
        self._order = order
        self._numbers = numbers
        self._number = -1
        self._names: dict[int, str] = {}
        """The expected nodes, by stream."""
        self._reports: dict[int, StackReport | StepsReport] = {}
        self._missing: list[str] = []
        self._is_complete = asyncio.Event()
        self._asking: asyncio.Task[Whereabouts] | None = None

    async def ask(
        self,
        nodes: Mapping[int, str],
        away: tuple[str, ...],
        timeout_s: float = REPORTS_S,
        order: Callable[[int], StackOrder | StepsOrder] | None = None,
    ) -> Whereabouts:
        """Send the request to nodes; return the reports that arrive in time.

        Args:
            nodes: their names, by stream.
            away: names of nodes without a stream.
            timeout_s: how long the nodes have.
            order: creates the request, unless one is under way; None: the usual one.
        """
        if self._asking is None or self._asking.done():
            order = order or self._order
            self._asking = asyncio.create_task(self._ask(nodes, away, timeout_s, order))
        return await asyncio.shield(self._asking)

    def take(self, link: int, report: StackReport | StepsReport) -> None:
        """Process a report of a stream."""
        if report.number == self._number and link in self._names:
            self._reports[link] = report
            self._look()

    def gone(self, link: int) -> None:
        """Record that a stream has ended."""
        if link in self._names and link not in self._reports:
            self._missing.append(self._names.pop(link))
            self._look()

    def _look(self) -> None:
        if len(self._reports) == len(self._names):
            self._is_complete.set()

    async def _ask(
        self,
        nodes: Mapping[int, str],
        away: tuple[str, ...],
        timeout_s: float,
        make: Callable[[int], StackOrder | StepsOrder],
    ) -> Whereabouts:
        self._number = next(self._numbers)
        self._names, self._reports = dict(nodes), {}
        self._missing = list(away)
        self._is_complete.clear()
        order = make(self._number)
        for link in nodes:
            self._send(link, order)
        self._look()
        try:
            await asyncio.wait_for(self._is_complete.wait(), timeout_s)
        except asyncio.TimeoutError:
            waiting = self._names.keys() - self._reports.keys()
            self._missing += [self._names[link] for link in sorted(waiting)]
        stacks: list[RankStack] = []
        steps: list[RankSteps] = []
        checkpoint = (0, 0.0)
        for report in self._reports.values():
            if isinstance(report, StackReport):
                stacks += report.stacks
            else:
                steps += report.workers
                written = (report.checkpoint_step, report.checkpoint_age_s)
                checkpoint = max(checkpoint, written, key=lambda one: one[0])
        self._names, self._reports = {}, {}
        return Whereabouts(tuple(stacks), tuple(self._missing), tuple(steps), checkpoint)
