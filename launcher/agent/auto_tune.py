"""``--auto-tune on``: on the node with rank 0, reads the workers' pages and sets loader values.

The worker with rank 0 reads them from its page and sends them to all ranks with its step report.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from msgspec.structs import replace

from ...events.event import Event
from ...events.tuning import SettingsStarted, TrialEnded, TuningEnded
from ...rendezvous.protocol.messages import Assignment
from ...training.worker import tuning_page
from ..machine.cpu_limit import read_cpu_limit
from ..processes.worker_watch import WorkerWatch
from ..tuning.knobs import NUM_WORKERS, PREFETCH, SETTINGS, of_loader
from ..tuning.trial import Order, Reading
from ..tuning.tuner import Tried, Tuner
from ..workers.tune_file import TuneFile
from ..workers.worker_group import WorkerGroup, WorkerGroupState

_FIRST_LOOK_S = 1.0
_AGAIN_S = 0.1
"""Delay before the next read if a step ended during this one."""
_OWN_PHASES = frozenset({"training", "saving"})
"""Snapshots are saved in each step; the worker reports checkpoints itself."""
_NOTHING_TO_TRY = (
    "no step of a Checkpointer used a DataLoader with num_workers >= 1 (read with"
    " ElasticBatches.parts)"
)


class Machine(NamedTuple):
    """CPU limit and number of workers of this node."""

    cpus: float
    workers: int

    @classmethod
    def of(cls, workers: int) -> "Machine":
        """Return the values of this host."""
        limit = read_cpu_limit()
        return cls(limit.cpus if limit is not None else os.cpu_count() or 1, workers)


class AutoTune:
    """The tuner of a job, while this node has rank 0."""

    def __init__(
        self,
        machine: Machine,
        file: TuneFile | None,
        note: Callable[[Event], None],
        show: Callable[[str], None] | None = None,
    ) -> None:
        """Initialize with the values of ``file``; ``show`` prints a table at the end."""
        kept = dict(file.values.settings) if file is not None else {}
        self._tuner = Tuner(of_loader(machine.cpus, machine.workers), kept)
        self._file, self._note, self._show = file, note, show
        self._group: WorkerGroup | None = None
        self._at: Assignment | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reported = 0
        """Number of trials that were reported."""
        self._has_loader = False

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
            settings = tuning_page.pack(kept.get(NUM_WORKERS, 0), kept.get(PREFETCH, 0))
            group.watches[0].tune(settings or tuning_page.NOTHING)
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
        watch = group.watches[0] if group is not None else None
        if group is None or watch is None or group.state is not WorkerGroupState.RUNNING:
            return
        reading = self._reading(group, watch)
        if reading is None:
            self._look_in(_FIRST_LOOK_S if watch.tuned() is None else _AGAIN_S)
            return
        order = self._tuner.read(reading)
        self._report()
        if order is None:
            self._stop()
            return
        self._pass_on(watch, order)
        self._look_in(order.look_in_s)

    def _pass_on(self, watch: WorkerWatch, order: Order) -> None:
        if NUM_WORKERS in order.values:
            settings = tuning_page.pack(order.values[NUM_WORKERS], order.values[PREFETCH])
            watch.tune(settings | (tuning_page.TRIAL if order.is_trial else 0))

    def _reading(self, group: WorkerGroup, watch: WorkerWatch) -> Reading | None:
        """Return the current values; None if no step is complete, or one is just ending."""
        now = time.monotonic()
        tuned, phases = watch.tuned(), watch.phases(now)
        if tuned is None or phases is None:
            return None
        values = {}
        if tuned.settings:
            processes, prefetch = tuning_page.unpack(tuned.settings)
            values = {NUM_WORKERS: processes, PREFETCH: prefetch}
            self._has_loader = True
        loadings = [one.loading() for one in group.watches if one is not None]
        waited_s = max((loading.wait_s for loading in loadings if loading is not None), default=0.0)
        others_s = sum(spent for name, spent in phases[2].items() if name not in _OWN_PHASES)
        return Reading(
            now,
            tuned.at_s,
            tuned.step,
            values,
            waited_s,
            tuned.disturbed + others_s,
            tuned.switch_s,
        )

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
            settings = tuple(self._tuner.kept.items())
            values = replace(self._file.values, settings=settings, gain=self._gain)
            self._file.keep(values, self._note)


def _table(tried: Sequence[Tried]) -> str:
    lines = ["Tried by --auto-tune on:"]
    for one in tried:
        found = one.outcome
        gain = f"{found.gain:+.1%}" if found.old_s else ""
        change = f"{one.old} -> {one.new}"
        lines.append(f"  {one.name:<16}{change:>10}{gain:>9}  {found.reason or 'accepted'}")
    return "\n".join(lines)
