"""Measures the time of work on a GPU with the clock of the GPU. Imports torch.

The host only waits, so a CPU quota or a busy core does not change a result. It waits by polling, so
that work that never ends can time out with its name; a wait in the driver would not end.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Final

import torch

_ASK_AGAIN_S: Final = 50e-6
_BUSY_CYCLES: Final = 500_000
"""0.25 ms at 2 GHz; if a 100 MHz clock counts cycles, as on some AMD GPUs, 5 ms."""


class TimedOutError(Exception):
    """Raised when a GPU does not finish in time."""


class GpuTimer:
    """Times the work that is launched on the current stream of the current device."""

    def __init__(
        self, give_up_at: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """After ``give_up_at`` on the clock, in seconds, unfinished work has timed out."""
        self._give_up_at = give_up_at
        self._clock = clock

    def time_s(self, launch: Callable[[], object], what: str) -> float:
        """Launch work and return its time on the GPU; raise ``TimedOutError`` if it does not end.

        The GPU is kept busy until the work is queued: an idle GPU would record the first event
        immediately and then wait for the host, whose time would count.
        """
        begin, end = (_event(enable_timing=True) for _ in range(2))
        _keep_busy()
        begin.record()
        launch()
        self._wait(end, what)
        return float(begin.elapsed_time(end)) / 1e3

    def finish(self, what: str) -> None:
        """Wait for all launched work; raise ``TimedOutError`` if it does not end."""
        self._wait(_event(), what)

    def _wait(self, event: Any, what: str) -> None:
        start = self._clock()
        event.record()
        while not event.query():
            now = self._clock()
            if now >= self._give_up_at:
                raise TimedOutError(f"{what} timed out after {now - start:.3g} s")
            time.sleep(_ASK_AGAIN_S)


def _keep_busy() -> None:
    spin: Any = getattr(torch.cuda, "_sleep", None)  # as in torch's own tests
    if spin is not None:
        spin(_BUSY_CYCLES)


def _event(**options: bool) -> Any:
    kind: Any = torch.cuda.Event
    return kind(**options)
