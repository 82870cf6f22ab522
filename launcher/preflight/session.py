"""The checks on this node: passes the master's orders to the crew, and sends its records back.

Orders are executed one at a time, in the order received; the crew ends each by its deadline. A
check with a partner that an earlier master ordered is canceled when the next master orders a
different one: the partner may never have received the order, and the checks would time out. The
crew is stopped before training workers start, so that no check worker holds a device.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ... import exit_codes
from ...checks.records import CLOCK_FACT, Record, record_to_json
from ...errors import NodeUnfitError
from ...rendezvous.protocol.check_messages import CheckOrder, CheckResult, CheckVerdict
from ...rendezvous.protocol.messages import Outcome, Verdict
from ...rendezvous.protocol.offer import Offer
from ...tasks import show_bug
from .crew import CheckCrew

_ALONE = ("facts", "solo")
"""The phases in which a node does not wait for another node."""


class CheckSession:
    """Receives orders, has the crew execute them, and sends the results.

    Without a crew, the master sends no orders. ``is_all``: the job consists only of checks.
    """

    def __init__(
        self,
        crew: CheckCrew | None,
        renew: Callable[[], Offer],
        post: Callable[[CheckResult], None],
        *,
        is_all: bool = False,
    ) -> None:
        self._crew = crew
        self.node_id = ""
        """The node ID that the master assigned in place of the crew's; empty if none."""
        self._renew = renew
        self._post = post
        self._is_all = is_all
        self._task: asyncio.Task[None] | None = None
        self._next: CheckOrder | None = None
        self._order: CheckOrder | None = None
        """The last order that was started."""
        self._answer: tuple[Record, Offer] | None = None
        """The record of that order, once it is available, and the offer of this node after it."""
        self._is_of_old_stream = False
        """Whether that order was received on an earlier stream."""
        self._newest = 0
        """The highest order number on the current stream to the master."""
        self._found: CheckVerdict | None = None
        """The result for this node, until it is checked again."""

    def prepare(self) -> None:
        """Start the check workers before the first order."""
        if self._crew is not None:
            with suppress(OSError):  # the first order reports it
                self._crew.start()

    def connected(self) -> None:
        """Record a new stream; it may lead to another master, whose order numbers start again."""
        self._newest, self._is_of_old_stream = 0, True

    def take(self, order: CheckOrder) -> bool:
        """Accept an order; return whether it is new."""
        if order.number < self._newest:
            return False
        self._newest = order.number
        if order in (self._order, self._next):
            if order == self._order and self._answer is not None:
                # The first reply was lost with a broken stream, or another master sends this order.
                self._send(order, *self._answer)
            return False
        self._next, self._found = order, None
        before = self._task
        if before is None or self._is_useless_meeting():
            if before is not None:
                before.cancel()
                self._order = None
            self._task = asyncio.create_task(self._work(before))
            self._task.add_done_callback(partial(show_bug, "a check"))
        return True

    def _is_useless_meeting(self) -> bool:
        order = self._order
        return self._is_of_old_stream and order is not None and order.phase not in _ALONE

    def hear(self, found: CheckVerdict) -> bool:
        """Record the result for this node; return whether it is new."""
        is_news = found != self._found
        self._found = found
        return is_news

    def missed(self, verdict: Verdict) -> NodeUnfitError | None:
        """Return the error of a node that was not checked before its job ended."""
        if not self._is_all or self._found is not None or verdict.outcome is not Outcome.SUCCEEDED:
            return None
        return NodeUnfitError(
            "this node was not checked: it joined, or reconnected, while the others were "
            f"being checked ({verdict.sentence}); run the check again.",
            exit_codes.CHECKS_FAILED,
        )

    async def rest(self) -> None:
        """Stop the running check and the check workers."""
        # Forget all orders: another master may use the same number for a different order.
        self._next = self._order = self._answer = None
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])
        if self._crew is not None:
            await self._crew.rest()

    async def _work(self, useless: "asyncio.Task[None] | None" = None) -> None:
        assert self._crew is not None
        if useless is not None:
            await asyncio.wait([useless])
            await self._crew.rest()
        while (order := self._next) is not None:
            self._order, self._next, self._answer = order, None, None
            self._is_of_old_stream = False
            record = await self._crew.run(order)
            if self.node_id:
                record = replace(record, node=self.node_id)
            if self._is_overtaken():
                continue
            self._answer = record, self._renew()
            self._send(order, *self._answer)
        self._task = None

    def _send(self, order: CheckOrder, record: Record, offer: Offer) -> None:
        if self._is_of_old_stream:  # the other nodes may have read their clocks at another time
            facts = {name: fact for name, fact in record.facts.items() if name != CLOCK_FACT}
            record = replace(record, facts=facts)
        self._post(CheckResult(order.number, record_to_json(record), offer))

    def _is_overtaken(self) -> bool:
        """Whether another order was received in the meantime, possibly from another master."""
        return self._next is not None
