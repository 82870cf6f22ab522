"""How long work on a GPU takes, by the clock of the GPU. Imports torch.

The host only waits: a CPU quota that holds it back, or a busy core, changes no figure. It waits by
asking, so that work that never ends is given up with its name; waiting in the driver would not end.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Final

import torch

_ASK_AGAIN_S: Final = 50e-6


class TimedOutError(Exception):
    """Raised when a GPU does not get done with something in time."""


class GpuTimer:
    """Times what is launched on the current stream of the current device."""

    def __init__(
        self, give_up_at: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a timer.

        Args:
            give_up_at: by the clock; what is not done then has timed out.
            clock: seconds.
        """
        self._give_up_at = give_up_at
        self._clock = clock

    def time_s(self, launch: Callable[[], object], what: str) -> float:
        """Launch work, wait for it and return how long the GPU took.

        Args:
            launch: starts it, and need not wait.
            what: names it.

        Raises:
            TimedOutError: it does not end.
        """
        begin, end = (_event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        self._wait(end, what)
        return float(begin.elapsed_time(end)) / 1e3

    def finish(self, what: str) -> None:
        """Wait for all that was launched.

        Raises:
            TimedOutError: it does not end.
        """
        self._wait(_event(), what)

    def _wait(self, event: Any, what: str) -> None:
        start = self._clock()
        event.record()
        while not event.query():
            now = self._clock()
            if now >= self._give_up_at:
                raise TimedOutError(f"{what} timed out after {now - start:.3g} s")
            time.sleep(_ASK_AGAIN_S)


def _event(**options: bool) -> Any:
    """Return a mark on the GPU's clock; torch declares no types of it."""
    kind: Any = torch.cuda.Event
    return kind(**options)
