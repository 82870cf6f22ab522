"""The fence of this node, with its clock. With a single endpoint there is no fence and no tick."""

import asyncio
import math
import time
from collections.abc import Callable

from ..protocol.timeouts import Timeouts
from .fence import Fence

_TICK_S = 1.0


class FenceTick:
    """Time to check whether there is a leader."""


class Fencing:
    """Detects that this node has been without a leader for too long."""

    def __init__(
        self,
        timeouts: Timeouts,
        post: Callable[[FenceTick], None],
        keep: Callable[[float], None],
        *,
        may_change: bool,
    ) -> None:
        """Start without a leader; ``arm`` it on an event loop.

        ``post`` queues a tick, whose handler calls ``is_due``. ``keep`` reports the deadline of the
        workers to another process, in case this one blocks.
        """
        self.limit_s = timeouts.fence_s if may_change else math.inf
        self._fence = Fence(self.limit_s, timeouts.silence_s, now())
        self._post, self._keep = post, keep
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def is_due(self, event: object) -> bool:
        """Return whether this node must not have workers; call it before each event is handled."""
        was_due, self._is_due = self._is_due, self._fence.tick(now())
        if isinstance(event, FenceTick) or (was_due and not self._is_due):
            self.arm()
        return self._is_due

    def arm(self) -> None:
        """Schedule the next tick."""
        self.close()
        if self.limit_s == math.inf:
            return
        self._keep(self._fence.latest())
        delay_s = self._fence.deadline() - now()
        if delay_s <= 0 or delay_s > _TICK_S:
            delay_s = _TICK_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._post, FenceTick())

    def found(self, opened_s: float) -> None:
        """Record that a leader has accepted this node, on a stream opened at ``now``'s time."""
        self._fence.found(now(), opened_s)
        self.arm()

    def lost(self) -> None:
        """Record that the stream to the leader has ended."""
        self._fence.lost(now())
        self.arm()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()


def now() -> float:
    """Return seconds of a clock that continues while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
