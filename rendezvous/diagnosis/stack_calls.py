"""The master asks all nodes of a round where their workers are, or how many steps they have done.

The rules know nothing of it.
"""

import asyncio
from collections.abc import Callable, Mapping

from ...values import dataclass
from ..protocol.stacks import RankStack, StackOrder, StackReport
from ..protocol.steps import RankSteps, StepsOrder, StepsReport

REPORTS_S = 4.0
"""How long the nodes have for their reports: more than their workers have to answer them."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What the nodes have said."""

    stacks: tuple[RankStack, ...]
    silent: tuple[str, ...]
    """The nodes that have not answered, in words."""
    steps: tuple[RankSteps, ...] = ()
    """Of the ranks that have shown progress, where these were asked for."""
    checkpoint: tuple[int, float] = (0, 0.0)
    """Likewise, of the newest checkpoint, the step (0: none is known) and the age in seconds."""


class StackCalls:
    """Asks one question at a time; a call meanwhile gets the same answer."""

    def __init__(
        self,
        send: Callable[[int, StackOrder | StepsOrder], None],
        order: Callable[[int], StackOrder | StepsOrder] = StackOrder,
    ) -> None:
        """Create it.

        Args:
            send: says something on a stream, if it is there.
            order: makes the question, of its number.
        """
        self._send = send
        self._order = order
        self._number = 0
        self._names: dict[int, str] = {}
        """The node on each stream from which a report is awaited."""
        self._reports: dict[int, StackReport | StepsReport] = {}
        self._missing: list[str] = []
        self._is_complete = asyncio.Event()
        self._asking: asyncio.Task[Whereabouts] | None = None

    async def ask(
        self, nodes: Mapping[int, str], away: tuple[str, ...], timeout_s: float = REPORTS_S
    ) -> Whereabouts:
        """Ask nodes, and return what those have said that answered in time.

        Args:
            nodes: by stream, in words.
            away: those without a stream.
            timeout_s: how long they have.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(nodes, away, timeout_s))
        return await asyncio.shield(self._asking)

    def take(self, link: int, report: StackReport | StepsReport) -> None:
        """Take a report that came in on a stream."""
        if report.number == self._number and link in self._names:
            self._reports[link] = report
            self._look()

    def gone(self, link: int) -> None:
        """A stream is gone: nothing comes from it any more."""
        if link in self._names and link not in self._reports:
            self._missing.append(self._names.pop(link))
            self._look()

    def _look(self) -> None:
        if len(self._reports) == len(self._names):
            self._is_complete.set()

    async def _ask(
        self, nodes: Mapping[int, str], away: tuple[str, ...], timeout_s: float
    ) -> Whereabouts:
        self._number += 1
        self._names, self._reports = dict(nodes), {}
        self._missing = list(away)
        self._is_complete.clear()
        order = self._order(self._number)
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
