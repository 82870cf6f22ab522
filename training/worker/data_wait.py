"""Time that training waits for torch's ``DataLoader``, as sums in the worker's page.

Only batches that the main thread takes between the first step and the end of training count, except
in activities. On a GPU, a wait counts while the device is idle, because earlier work on the device
hides the wait. Two events around the wait measure that on the device.
"""

from __future__ import annotations

import sys
import time
from _thread import get_ident
from typing import Any

from .page_layout import BATCHES, FIRST_WAIT_NS, PHASE, PREFETCH, PROCESSES, SQUARES, WAIT_NS
from .phases import TRAINING
from .start import Page

LONG_NS = 1_000_000
_MOST = (1 << 64) - 1
_PAIRS_MAX = 4
"""Maximum number of event pairs that the device has not reached; further waits are not measured."""


class DataWait:
    """The sums of a worker."""

    def __init__(self, page: Page) -> None:
        self._is_own, self._thread, self._page = page.is_own, page.thread, page.words
        self._depth = 0
        """A dataset can itself read from a loader."""
        self._began_ns = 0
        self._pending: list[tuple[Any, Any, bool]] = []
        """Events around a wait, and whether it was for a first batch."""
        self._begin_event: Any = None

    def begin(self) -> bool:
        """Start to wait for a batch; return whether it counts, so that ``end`` must follow."""
        is_training = self._page[PHASE] == TRAINING and get_ident() == self._thread
        if not is_training or not self._is_own():
            return False
        self._depth += 1
        if self._depth == 1:
            self._begin_event = self._record() if _uses_gpu() else None
            self._began_ns = time.monotonic_ns()
        return True

    def end(self, iterator: Any, *, has_batch: bool) -> None:
        """End the wait for a batch of a loader's iterator."""
        self._depth -= 1
        if self._depth or not has_batch:
            return
        page, waited_ns = self._page, time.monotonic_ns() - self._began_ns
        page[BATCHES] += 1
        is_long = waited_ns >= LONG_NS
        if is_long or page[BATCHES] == 1:
            page[PROCESSES] = getattr(iterator, "_num_workers", 0)
            page[PREFETCH] = getattr(iterator, "_prefetch_factor", 0) or 0
        is_first = getattr(iterator, "_num_yielded", 0) == 1
        if self._begin_event is None:
            self._add(waited_ns, is_first)
        elif is_long:
            self._read_pairs()
            if len(self._pending) < _PAIRS_MAX:
                self._pending.append((self._begin_event, self._record(), is_first))
                self._read_pairs()

    def _add(self, waited_ns: int, is_first: bool) -> None:
        self._page[WAIT_NS] += waited_ns
        if is_first:
            self._page[FIRST_WAIT_NS] += waited_ns
        else:
            squares = self._page[SQUARES] + (waited_ns // 1000) ** 2
            self._page[SQUARES] = min(squares, _MOST)  # a single wait of 72 minutes reaches it

    def _read_pairs(self) -> None:
        """Add the waits whose end the device has reached."""
        while self._pending and self._pending[0][1].query():
            first, last, is_first = self._pending.pop(0)
            self._add(int(max(0.0, first.elapsed_time(last)) * 1e6), is_first)

    def _record(self) -> Any:
        event = sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record()
        return event


def _uses_gpu() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())
