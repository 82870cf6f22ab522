"""How a node that will be gone goes.

When it tells the master, what its workers do first, and when it leaves at the latest.
"""

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial

from ...events.event import Event
from ...events.node import DrainOrdered, NodeGoneSoon
from ...rendezvous.protocol.drain_messages import Drain, Drained, Notice
from ...tasks import show_bug
from ..options import LaunchOptions
from .gone_soon import GoneSoon
from .pages import NoticePage

PATIENCE_MIN_S = 1.0
"""What workers have to end after SIGTERM at least, however late it is."""


class TimeToLeave:
    """The ranks have had their time to leave one state."""


class Departure:
    """What this node knows of nodes that will be gone, itself among them."""

    def __init__(
        self,
        options: LaunchOptions,
        send: Callable[[Notice | Drained], None],
        post: Callable[[GoneSoon | TimeToLeave], None],
        tell: Callable[[Event], None],
    ) -> None:
        """Begin with none.

        Args:
            options: how long workers have to end after SIGTERM, and whether what would be lost with
                a node is to be written to storage.
            send: sends a message to the master.
            post: queues an event for the agent.
            tell: tells the user.
        """
        self._shutdown_timeout_s = options.shutdown_timeout_s
        self._send, self._post, self._tell = send, post, tell
        self._page = NoticePage(self._drained, saves=options.save_at_breakpoint)
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._order: Drain | None = None
        self._is_ready = False
        """The workers have all exited with 0, since nodes go."""
        self.reason = ""
        """Why this node will be gone; empty: it will not."""
        self.sources: set[str] = set()
        """Of all notices."""
        self._gone_at = self._until = 0.0
        """When this node is gone, and until when the ranks have their time."""

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer workers that ask whether nodes will be gone."""
        self._page.listen(loop)

    def watch(self, source: str | None) -> None:
        """Begin to wait for a notice; ``close`` ends it.

        Args:
            source: of notices, as ``--preemption-notice`` has it; None: there is none.
        """
        if source is not None:
            # The agent of a job without it does not load its modules.
            from .watch import watch

            self._watching = asyncio.create_task(watch(source, os.environ, self._post, self._tell))
            self._watching.add_done_callback(partial(show_bug, "--preemption-notice"))

    def begin(self) -> None:
        """A round begins."""
        self._order, self._is_ready = None, False
        self._page.begin()

    @property
    def waits_for_workers(self) -> bool:
        """Whether workers of this node have asked whether nodes will be gone."""
        return self._page.is_used

    def notice(self, gone: GoneSoon) -> None:
        """This node will be gone; of several notices the earliest time holds.

        The ranks have all of it but what the workers need to end, and half of it at least.
        """
        self.sources.add(gone.reason)
        now = time.monotonic()
        if self.reason and now + gone.seconds >= self._gone_at:
            return
        self._gone_at = now + gone.seconds
        limit_s = gone.seconds - min(self._shutdown_timeout_s, gone.seconds / 2)
        self._until = now + limit_s
        if not self.reason:
            self._tell(NodeGoneSoon(gone.reason, gone.seconds, limit_s))
        self.reason = self.reason or gone.reason
        self._cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limit_s, self._post, TimeToLeave())
        self.repeat()

    def repeat(self) -> None:
        """Tell the master that this node will be gone, on each stream."""
        if self.reason:
            self._send(Notice(self.reason, max(0.0, self._until - time.monotonic())))

    def order(self, order: Drain) -> None:
        """Have the workers leave one state: nodes will be gone."""
        if self._order is None and not self.reason:
            self._tell(DrainOrdered(order.reason, order.seconds))
        self._order = order
        self._page.tell(order.seconds, is_whole=order.is_whole)
        self._drained()

    def patience_s(self) -> float:
        """Return how long workers have to end, now that they get SIGTERM."""
        return max(PATIENCE_MIN_S, self._gone_at - time.monotonic())

    def within(self, limit_s: float) -> float:
        """Return how many of some seconds this node has, which may be gone before."""
        return min(limit_s, self.patience_s()) if self.reason else limit_s

    def are_ready(self, round_number: int) -> bool:
        """Return whether workers that have all exited with 0 have done so because nodes go.

        Then the job is not over; the master is told instead that they are ready.
        """
        order = self._order
        if order is None or order.round != round_number or not self._page.only_ask:
            return False
        self._is_ready = True
        self._drained()
        return True

    def close(self) -> None:
        """Give everything back."""
        self._cancel()
        if self._watching is not None:
            self._watching.cancel()
        self._page.close()

    def _drained(self) -> None:
        step = -1 if self._is_ready else self._page.step
        if self._order is not None and step is not None:
            self._send(Drained(self._order.round, step))

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
