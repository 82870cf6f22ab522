"""What the workers of this node do before nodes of the job are gone: all ranks save one state."""

import asyncio
from collections.abc import Callable

from ...rendezvous.protocol.drain_messages import Drain, Drained
from .pages import NoticePage


class Draining:
    """The master's order, until the round ends, and the workers' answer to it."""

    def __init__(self, send: Callable[[Drained], None], *, saves: bool) -> None:
        """Begin without an order.

        Args:
            send: sends a message to the master.
            saves: what would be lost with a node is to be written to storage.
        """
        self._send = send
        self._page = NoticePage(self._answer, saves=saves)
        self._order: Drain | None = None
        self._is_ready = False
        """The workers have all exited with 0, since nodes go."""

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer workers that ask whether nodes will be gone."""
        self._page.listen(loop)

    def begin(self) -> None:
        """A round begins."""
        self._order, self._is_ready = None, False
        self._page.begin()

    @property
    def is_asked_for(self) -> bool:
        """Whether workers of this node have asked whether nodes will be gone."""
        return self._page.is_used

    def order(self, order: Drain) -> bool:
        """Have the workers save one state; return whether it is the first order of the round."""
        is_first, self._order = self._order is None, order
        self._page.tell(order.seconds, is_whole=order.is_whole)
        self._answer()
        return is_first

    def are_ready(self, round_number: int) -> bool:
        """Return whether workers that have all exited with 0 have done so because nodes go.

        Then the job is not over; the master is told instead that they are ready.
        """
        order = self._order
        if order is None or order.round != round_number or not self._page.only_ask:
            return False
        self._is_ready = True
        self._answer()
        return True

    def close(self) -> None:
        """Give everything back."""
        self._page.close()

    def _answer(self) -> None:
        step = -1 if self._is_ready else self._page.step
        if self._order is not None and step is not None:
            self._send(Drained(self._order.round, step))
