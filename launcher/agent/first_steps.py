"""Notices when a watched worker of this node has completed the first step of a round."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from ...events.event import Event
from ...events.workers import TrainingStarted
from .worker_group import WorkerGroup, WorkerGroupState

_SOONEST_S: Final = 0.02
_LATEST_S: Final = 15.0
_SHARE: Final = 0.05
"""It looks again after this share of the time since the start, so that the time of the event is
known to 5 %."""


class FirstSteps:
    """Reads the workers' pages until one has a step, then no more."""

    def __init__(self, note: Callable[[Event], None]) -> None:
        """Create it without workers.

        Args:
            note: receives the event.
        """
        self._note = note
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, group: WorkerGroup | None) -> None:
        """Watch the workers of a round, which were started now; unwatched ones show no steps."""
        self.close()
        if group is not None and any(worker.watch is not None for worker in group.running):
            self._look(group, time.monotonic())

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, group: WorkerGroup, since: float) -> None:
        self._timer = None
        if group.state is not WorkerGroupState.RUNNING:
            return
        known = [w.watch.progress() for w in group.running if w.watch is not None]
        if any(progress is not None and progress.ticks for progress in known):
            at = group.assignment
            self._note(TrainingStarted(at.round, at.node_rank))
            return
        delay_s = min(_LATEST_S, max(_SOONEST_S, _SHARE * (time.monotonic() - since)))
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look, group, since)
