"""``--auto-tune on``: on the node with rank 0, reads the workers' pages and sets loader values.

The worker with rank 0 reads them from its page and sends them to all ranks with its step report.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod

from msgspec.structs import replace

from ...events.event import Event
from ...events.tuning import SettingsStarted, TrialEnded, TuningEnded
from ...rendezvous.protocol.messages import Assignment
from ...training.worker import loader_settings
from ...training.worker import page_layout as layout
from ..processes.worker_watch import WorkerWatch
from ..workers.worker_group import WorkerGroup, WorkerGroupState
from .trial import Reading
from .tune_file import Settings, TuneFile
from .tuner import NUM_WORKERS, PREFETCH, SETTINGS, Tried, Tuner, of_loader

_FIRST_LOOK_S = 1.0
_AGAIN_S = 0.1
"""Delay before the next read if a step ended during this one."""
_OWN_PHASES = frozenset({"training", "saving"})
"""Snapshots are saved in each step; the worker reports checkpoints itself."""
_NOTHING_TO_TRY = (
    "no step of a Checkpointer used a DataLoader with num_workers >= 1 (read with"
    " ElasticBatches.parts)"
)


class LoaderTrials:
    """The tuner of a job, while this node has rank 0."""

    def __init__(self, cpus: float, workers: int, file: TuneFile | None = None) -> None:
        """Initialize with the values of a file.

        ``cpus`` is the CPU limit of this node, which its ``workers`` share.
        """
        kept = file.values.settings.by_name() if file is not None else {}
        self._tuner = Tuner(of_loader(cpus, workers), kept)
        self._file = file
        self._note: Callable[[Event], None] = lambda _: None
        self._show: Callable[[str], None] | None = None
        self._group: WorkerGroup | None = None
        self._at: Assignment | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reported = 0
        """Number of trials that were reported."""
        self._has_loader = False

    def listen(self, note: Callable[[Event], None], show: Callable[[str], None] | None) -> None:
        """Pass events to ``note`` from now on, and a table at the end to ``show``."""
        self._note, self._show = note, show

    @property
    def kept(self) -> Mapping[str, int]:
        """The accepted values."""
        return self._tuner.kept

    def begin(self, assignment: Assignment) -> None:
        """Start a round; this ends a trial of the previous one."""
        self._stop()
        cause = assignment.cause
        self._tuner.interrupt(cause.summary() if cause is not None and cause.trial else "")
        self._report()
        if assignment.node_rank != 0:
            self._at = None
            return
        own = self._tuner.kept
        of_job = {one.name: one.value for one in assignment.carried if one.name in SETTINGS}
        self._tuner.kept = {**own, **of_job}
        if self._at is None and own and self._tuner.kept == own:
            self._note(SettingsStarted(assignment.round, 0, dict(own)))
        self._at = assignment

    def started(self, group: WorkerGroup | None) -> None:
        """Follow the workers of the round, which have just started."""
        if group is not None and self._at is not None and group.watches[0] is not None:
            self._group = group
            kept = self._tuner.kept
            settings = loader_settings.pack(kept.get(NUM_WORKERS, 0), kept.get(PREFETCH, 0))
            if (page := group.watches[0].page) is not None:
                page[layout.WANTED] = settings or loader_settings.NOTHING
            self._look_in(_FIRST_LOOK_S)

    def close(self) -> None:
        """Stop following, and report the result."""
        self._stop()
        if self._at is None:
            return
        self._tuner.interrupt("")
        self._report()
        reason = "" if self._has_loader else _NOTHING_TO_TRY
        ended = TuningEnded(dict(self._tuner.kept), self._gain, len(self._tuner.tried), reason)
        if self._show is not None and self._tuner.tried:
            self._show(_table(self._tuner.tried))
        self._note(ended)

    @property
    def _gain(self) -> float:
        accepted = [one.outcome.gain for one in self._tuner.tried if one.outcome.is_accepted]
        return round(prod(1 + one for one in accepted) - 1, 4)

    def _stop(self) -> None:
        self._group = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        group = self._group
        if group is None or group.state is not WorkerGroupState.RUNNING:
            return
        watch = group.watches[0]
        if watch is None or (page := watch.page) is None:
            return
        reading = self._reading(group, watch, page)
        if reading is None:
            self._look_in(_AGAIN_S if page[layout.STEP_NS] else _FIRST_LOOK_S)
            return
        order = self._tuner.read(reading)
        self._report()
        if order is None:
            self._stop()
            return
        if NUM_WORKERS in order.values:
            settings = loader_settings.pack(order.values[NUM_WORKERS], order.values[PREFETCH])
            page[layout.WANTED] = settings | (loader_settings.TRIAL if order.is_trial else 0)
        self._look_in(order.look_in_s)

    def _reading(self, group: WorkerGroup, watch: WorkerWatch, page: memoryview) -> Reading | None:
        """Return the current values; None if no step is complete, or one is just ending."""
        now, step_ns, settings = time.monotonic(), page[layout.STEP_NS], page[layout.IN_EFFECT]
        steps, disturbed = page[layout.STEP], page[layout.DISTURBED]
        phases = watch.phases(now)
        if not step_ns or page[layout.STEP_NS] != step_ns or phases is None:
            return None
        values = {}
        if settings:
            processes, prefetch = loader_settings.unpack(settings)
            values = {NUM_WORKERS: processes, PREFETCH: prefetch}
            self._has_loader = True
        loadings = [one.loading() for one in group.watches if one is not None]
        waited_s = max((loading.wait_s for loading in loadings if loading is not None), default=0.0)
        others_s = sum(spent for name, spent in phases[2].items() if name not in _OWN_PHASES)
        switch_s = page[layout.SWITCH_NS] / 1e9
        return Reading(now, step_ns / 1e9, steps, values, waited_s, disturbed + others_s, switch_s)

    def _report(self) -> None:
        ended, at = self._tuner.tried[self._reported :], self._at
        self._reported += len(ended)
        if at is None:
            return
        for one in ended:
            found = one.outcome
            self._note(
                TrialEnded(
                    at.round,
                    at.node_rank,
                    setting=one.name,
                    old=one.old,
                    new=one.new,
                    is_accepted=found.is_accepted,
                    reason=found.reason,
                    gain=round(found.gain, 4),
                    old_s=round(found.old_s, 6),
                )
            )
        if self._file is not None and any(one.outcome.is_accepted for one in ended):
            values = replace(
                self._file.values, settings=Settings(**self._tuner.kept), gain=self._gain
            )
            self._file.keep(values, self._note)


def _table(tried: Sequence[Tried]) -> str:
    lines = ["Tried by --auto-tune on:"]
    for one in tried:
        found = one.outcome
        gain = f"{found.gain:+.1%}" if found.old_s else ""
        change = f"{one.old} -> {one.new}"
        lines.append(f"  {one.name:<16}{change:>10}{gain:>9}  {found.reason or 'accepted'}")
    return "\n".join(lines)
