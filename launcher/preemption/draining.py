"""All ranks of this node save a snapshot before the world changes."""

import asyncio
from collections.abc import Callable

from ...rendezvous.protocol.drain_messages import CancelDrain, Drain, Drained
from .pages import NoticePage


class Draining:
    """The master's drain order, until the round ends, and the workers' response."""

    def __init__(self, send: Callable[[Drained], None], *, saves: bool) -> None:
        self._send = send
        self._page = NoticePage(self._answer, saves=saves)
        self._order: Drain | None = None
        self._cancelled: int | None = None
        """Number of the last canceled order, for which a worker may still report a saved shard;
        None if there is none, or a later order was received."""
        self._round = 0
        self._has_fixed = False
        """Whether the master has been informed that the number of ranks is fixed."""
        self._is_ready = False
        """Whether all workers have exited with 0, because nodes are being preempted."""

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Accept requests of workers."""
        self._page.listen(loop)

    def begin(self, number: int) -> None:
        """Start a round."""
        self._round, self._has_fixed = number, False
        self._order, self._cancelled, self._is_ready = None, None, False
        self._page.begin()

    @property
    def is_asked_for(self) -> bool:
        """Whether workers of this node have requested notices."""
        return self._page.is_used

    def order(self, order: Drain) -> bool:
        """Have the workers save a snapshot; return whether the user should be informed.

        Workers that do not save snapshots do not delay a larger world, and are not notified of it.
        """
        if order.grows and order.number == self._cancelled:
            return False  # received late
        before, self._order = self._order, order
        is_other = before is None or before.number != order.number
        if self._cancelled is not None or (before is not None and before.grows and is_other):
            self._page.withdraw()
            self._cancelled = None
        if order.grows and self._page.is_fixed:
            self._send(Drained(order.round, -1, order.number, is_fixed=True))
            return False
        if order.grows and not self._page.will_save:
            self._answer()
            return False
        self._page.tell(
            order.seconds,
            is_whole=order.is_whole,
            resizes=order.resizes,
            grows=order.grows,
        )
        self._answer()
        return before is None or (is_other and order.grows) or before.grows != order.grows

    def cancel(self, message: CancelDrain) -> bool:
        """Have the workers continue, if they saved for a larger world; return whether they did."""
        order = self._order
        if order is None or not order.grows or order.number == message.number:
            return False
        self._order, self._cancelled = None, order.number
        return self._page.withdraw()

    def are_ready(self, round_number: int) -> bool:
        """Return whether workers, which all exited with 0, did so because of preemption.

        If so, the job is not over, and the master is informed that they are ready.
        """
        order = self._order
        if order is None or order.round != round_number or order.grows or not self._page.only_ask:
            return False
        self._is_ready = True
        self._answer()
        return True

    def close(self) -> None:
        """Release all resources."""
        self._page.close()

    def _answer(self) -> None:
        if self._page.is_fixed and not self._has_fixed:
            self._has_fixed = True
            self._send(Drained(self._round, -1, is_fixed=True))
        order = self._order
        if order is None:
            return
        step = -1 if self._is_ready else self._page.step
        if order.grows and not self._page.will_save:
            step = -1
        if step is not None:
            self._send(Drained(order.round, step, order.number))
