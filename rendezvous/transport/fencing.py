"""The fence of this node, with its clock: only where several hosts may lead."""

import asyncio
import time
from collections.abc import Callable

from ..lease.fence import Fence
from ..protocol.timeouts import Timeouts
from .channel_options import silence_s

_TICK_S = 1.0


class FenceTick:
    """It is time to look whether there is a leader."""


class Fencing:
    """Knows when this node has been without a leader for too long."""

    def __init__(self, timeouts: Timeouts, post: Callable[[FenceTick], None]) -> None:
        """Begin without a leader, on the running event loop.

        Args:
            timeouts: the fence, and after which silence a stream is given up.
            post: queues a tick; ``is_due`` is to be called when its turn comes.
        """
        silence = silence_s(timeouts.node_timeout_s, timeouts.node_grace_s)
        self._fence = Fence(timeouts.fence_s, silence, _now())
        self._post = post
        self._timer: asyncio.TimerHandle | None = None

    def is_due(self) -> bool:
        """Return whether no worker may live here; to be called before each event."""
        return self._fence.tick(_now())

    def arm(self) -> None:
        """Have the next tick posted."""
        self.close()
        delay_s = self._fence.deadline() - _now()
        if delay_s <= 0 or delay_s > _TICK_S:
            delay_s = _TICK_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._post, FenceTick())

    def found(self) -> None:
        """A leader has taken this node in."""
        self._fence.found(_now())

    def lost(self) -> None:
        """The stream to the leader is no more."""
        self._fence.lost(_now())
        self.arm()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()


def _now() -> float:
    """Return seconds that go on while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
