"""Reports the progress of this node's workers: the first step of a round, then once a minute.

If workers are watched, it also reports the seconds in each phase, once a minute and before each
event that changes how the time of this node is counted.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from ...events.event import Event
from ...events.workers import RoundProgressed, TrainingStarted, WorkerExited
from ...rendezvous.protocol.offer import Snapshots
from ...training.worker.phases import NAMES, TRAINING
from ..history.accounted import STOPS
from ..processes.worker_watch import Progress
from .worker_group import WorkerGroup, WorkerGroupState

_SOONEST_S: Final = 0.05
"""Minimum delay: each poll slows down two workers that start on two CPUs."""
_LATEST_S: Final = 15.0
_SHARE: Final = 0.05
"""Until the first step it polls again after this share of the time since the start, so that the
time of the event is accurate to 5%."""
_INTERVAL_S: Final = 60.0
_CHANGES: Final = STOPS | {
    *("training.started", "hang.suspected", "hang.dismissed", "drain.ordered", "agent.preempted"),
}


class FirstWorker:
    """The worker with local rank 0, as one or more processes; its time represents the node."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._pid = 0
        self._before: dict[str, float] = {}
        """The seconds of its earlier processes."""
        self._last: dict[str, float] = {}
        self._idle_s = 0.0
        self._has_exited = False

    def look(self, now: float) -> tuple[str, dict[str, float], float]:
        """Return the current phase, the seconds in each phase in this round, and its idle time.

        The idle time is the training since its last progress, in seconds. ``now`` is the time
        (``time.monotonic``); times stop at the first ``now`` after its exit.
        """
        doing = ""
        watch = self._group.watches[0]
        if watch is None or self._has_exited:
            return doing, dict(self._last), self._idle_s
        self._has_exited = self._group.has_first_exited
        if (found := watch.phases(now)) is not None:
            pid, doing, seconds, self._idle_s = found
            if pid != self._pid:
                self._pid, self._before = pid, self._last
            names = self._before.keys() | seconds.keys()
            before = self._before
            self._last = {
                name: round(before.get(name, 0.0) + seconds.get(name, 0.0), 6) for name in names
            }
        return "" if self._has_exited else doing, dict(self._last), self._idle_s


class StepEvents:
    """Reads the pages of watched workers; of others it reports only that the round runs."""

    def __init__(
        self,
        note: Callable[[Event], None],
        held: Callable[[], Snapshots | None] = lambda: None,
        progressed: Callable[[WorkerGroup, float, int], None] = lambda *_: None,
        stepped: Callable[[WorkerGroup], None] = lambda _: None,
    ) -> None:
        self._note, self._held, self._progressed = note, held, progressed
        self._at_first_step = stepped
        self._timer: asyncio.TimerHandle | None = None
        self._group: WorkerGroup | None = None
        self._first: FirstWorker | None = None
        """Set until the workers stop, if it is watched."""
        self._reported_at = 0.0
        self._has_trained = False
        self._stopped_at: float | None = None
        """When workers that had trained stopped, if this node has not trained since."""

    def begin(self, group: WorkerGroup | None) -> None:
        """Follow the workers of a round, which were started now."""
        self.close()
        if group is not None:
            self._group = group
            is_watched = any(watch is not None for watch in group.watches)
            self._first = FirstWorker(group) if is_watched else None
            self._reported_at = time.monotonic()
            self._look(group, self._reported_at, awaits_step=is_watched)

    def close(self) -> None:
        """Stop following."""
        self._group = self._first = None
        self._stop_looking()

    def report(self) -> None:
        """Report the seconds in each phase now, if the workers train and are watched."""
        if (progress := self.progress()) is not None and self._group is not None:
            self._report(self._group, progress)

    def progress(self) -> RoundProgressed | None:
        """Return the progress up to now; None if the workers do not train or are not watched."""
        if self._group is None or self._first is None:
            return None
        progress = self._progress(self._group, time.monotonic())
        return progress if progress.phases else None

    def note(self, event: Event) -> None:
        """Pass on an event of this node, after the seconds of the phases if it ends one."""
        if event.name in _CHANGES:
            self.report()
        if event.name in STOPS:
            self._first = None
            if self._has_trained and self._stopped_at is None:
                self._stopped_at = time.monotonic()
        elif isinstance(event, WorkerExited) and event.local_rank == 0 and self._first is not None:
            self._first.look(time.monotonic())  # reported when the others stop
        self._note(event)

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, group: WorkerGroup, since: float, *, awaits_step: bool) -> None:
        self._stop_looking()
        if group.state is not WorkerGroupState.RUNNING:
            return
        now, at = time.monotonic(), group.assignment
        if awaits_step and (stepped := _stepped(group)):
            awaits_step, self._has_trained = False, True
            first = max(progress.first for progress in stepped)
            stopped_at, self._stopped_at = self._stopped_at, None
            down_s = 0.0 if stopped_at is None else round(now - stopped_at, 6)
            self.note(TrainingStarted(at.round, at.node_rank, first, down_s))
            self._at_first_step(group)
        if now - self._reported_at >= _INTERVAL_S:
            self._reported_at = now
            self._report(group, self._progress(group, now))
        delay_s = _INTERVAL_S - (now - self._reported_at)
        if awaits_step:
            delay_s = min(delay_s, _LATEST_S, max(_SOONEST_S, _SHARE * (now - since)))

        def look() -> None:
            self._look(group, since, awaits_step=awaits_step)

        self._timer = asyncio.get_running_loop().call_later(max(_SOONEST_S, delay_s), look)

    def _progress(self, group: WorkerGroup, now: float) -> RoundProgressed:
        at, stepped = group.assignment, _stepped(group)
        looked = self._first.look(now) if self._first is not None else ("", {}, 0.0)
        doing, phases, idle_training_s = looked
        snapshot, replica = _newest(self._held())
        watch = group.watches[0] if self._first is not None else None
        first = watch.progress() if watch is not None else None
        last_s = max((progress.last_s or 0.0 for progress in stepped), default=now)
        return RoundProgressed(
            at.round,
            at.node_rank,
            steps=max((progress.furthest for progress in stepped), default=-1),
            steps_per_s=max((progress.steps_per_s for progress in stepped), default=0.0),
            idle_s=round(now - last_s, 6),
            snapshot=snapshot,
            replica=replica,
            doing=doing,
            phases=phases,
            counted_steps=first.steps if first is not None else 0,
            data_wait_s=_data_waits(group),
            idle_training_s=round(idle_training_s, 6),
        )

    def _report(self, group: WorkerGroup, progress: RoundProgressed) -> None:
        self._note(progress)
        watch = group.watches[0] if self._first is not None else None
        first = watch.progress() if watch is not None else None
        if first is not None:
            self._progressed(group, progress.phases.get(NAMES[TRAINING], 0.0), first.steps)


def _stepped(group: WorkerGroup) -> list[Progress]:
    known = [watch.progress() for watch in group.watches if watch is not None]
    return [progress for progress in known if progress is not None and progress.ticks]


def _data_waits(group: WorkerGroup) -> tuple[float, ...]:
    """Return the seconds that each worker has waited for data; empty if no loader was used."""
    known = [watch.loading() if watch is not None else None for watch in group.watches]
    if not any(known):
        return ()
    return tuple(round(loading.wait_s, 3) if loading is not None else 0.0 for loading in known)


def _newest(held: Snapshots | None) -> tuple[int, int]:
    """Return the steps of the newest snapshot and of the newest replica; -1 if none."""
    if held is None:
        return -1, -1
    own = held.held[-1] if held.held else None
    of_it = [one.step for one in held.replicas if own is None or one.owner == own.owner]
    return own.step if own is not None else -1, max(of_it, default=-1)
