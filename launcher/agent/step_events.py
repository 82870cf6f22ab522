"""Reports the progress of this node's workers: the first step of a round, then once a minute."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from ...events.event import Event
from ...events.workers import RoundProgressed, TrainingStarted
from ...rendezvous.protocol.offer import Snapshots
from .worker_group import WorkerGroup, WorkerGroupState

_SOONEST_S: Final = 0.02
_LATEST_S: Final = 15.0
_SHARE: Final = 0.05
"""Until the first step it looks again after this share of the time since the start, so that the
time of the event is known to 5 %."""
_INTERVAL_S: Final = 60.0


class StepEvents:
    """Reads the pages of watched workers; of others it reports only that the round runs."""

    def __init__(
        self, note: Callable[[Event], None], held: Callable[[], Snapshots | None] = lambda: None
    ) -> None:
        """Create it without workers.

        Args:
            note: receives the events.
            held: returns the snapshots of this node.
        """
        self._note, self._held = note, held
        self._timer: asyncio.TimerHandle | None = None
        self._reported_at = 0.0

    def begin(self, group: WorkerGroup | None) -> None:
        """Follow the workers of a round, which were started now."""
        self.close()
        if group is not None:
            is_watched = any(worker.watch is not None for worker in group.running)
            self._reported_at = time.monotonic()
            self._look(group, self._reported_at, awaits_step=is_watched)

    def close(self) -> None:
        """Stop following."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, group: WorkerGroup, since: float, *, awaits_step: bool) -> None:
        self.close()
        if group.state is not WorkerGroupState.RUNNING:
            return
        now, at = time.monotonic(), group.assignment
        watches = [worker.watch for worker in group.running if worker.watch is not None]
        known = [watch.progress() for watch in watches]
        stepped = [progress for progress in known if progress is not None and progress.ticks]
        steps = max((progress.furthest for progress in stepped), default=-1)
        if awaits_step and stepped:
            awaits_step = False
            self._note(TrainingStarted(at.round, at.node_rank, steps))
        if now - self._reported_at >= _INTERVAL_S:
            self._reported_at = now
            rate = max((progress.steps_per_s for progress in stepped), default=0.0)
            last_s = max((progress.last_s or 0.0 for progress in stepped), default=now)
            idle_s, (snapshot, replica) = now - last_s, _newest(self._held())
            self._note(
                RoundProgressed(at.round, at.node_rank, steps, rate, idle_s, snapshot, replica)
            )
        delay_s = _INTERVAL_S - (now - self._reported_at)
        if awaits_step:
            delay_s = min(delay_s, _LATEST_S, max(_SOONEST_S, _SHARE * (now - since)))

        def look() -> None:
            self._look(group, since, awaits_step=awaits_step)

        self._timer = asyncio.get_running_loop().call_later(max(_SOONEST_S, delay_s), look)


def _newest(held: Snapshots | None) -> tuple[int, int]:
    """Return the steps of the newest snapshot and of the newest replica; -1: none."""
    if held is None:
        return -1, -1
    own = max((snapshot.step for snapshot in held.held), default=-1)
    return own, max((replica.step for replica in held.replicas), default=-1)
