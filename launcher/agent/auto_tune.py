"""``--auto-tune on`` on the node with rank 0: reads the pages of its workers, and sets values.

The worker with rank 0 reads the settings of the loader in its page, and sends them to all ranks
with its report of a step. Values for which workers must restart are ordered from the master. Other
nodes set nothing: they report which values are on trial when a worker fails.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from ...events.event import Event
from ...events.tuning import SettingsStarted, TrialEnded, TuningEnded
from ...rendezvous.protocol.claim import Past
from ...rendezvous.protocol.messages import Assignment
from ...rendezvous.protocol.tuned import Retune, TunedValue
from ...training.worker import tuning_page
from ...training.worker.tuned_values import OMP_NUM_THREADS, decoded, encoded, key_of
from ...values import replace
from ..machine.cpu_limit import read_cpu_limit
from ..machine.idle_cpus import IdleCpus
from ..processes.worker_watch import WorkerWatch
from ..tuning.knobs import NUM_WORKERS, PREFETCH, of_loader, of_script, threads
from ..tuning.trial import Order, Reading, Values
from ..tuning.tuner import Knob, Tried, Tuner
from ..workers.tune_file import TuneFile
from ..workers.worker_group import WorkerGroup, WorkerGroupState

_FIRST_LOOK_S = 1.0
_AGAIN_S = 0.1
"""After a step has ended during a read."""
_REPEAT_S = 5.0
"""How often an order is repeated that the master has not received, or cannot carry out yet."""
_LOADER = (NUM_WORKERS, PREFETCH)
_STALLED_S = 10.0
"""With a value on trial, the first step may take ten times a restart and these seconds."""
_OWN_PHASES = frozenset({"training", "saving"})
"""Snapshots are saved in each step; the worker reports checkpoints itself."""


class Machine(NamedTuple):
    """What the workers of this node share."""

    cpus: float
    """The CPU limit."""
    cores: int
    """Physical cores that can be busy at once."""
    workers: int
    threads: int
    """``OMP_NUM_THREADS`` of each worker; 0: the user has set it, so that no other is tried."""

    @classmethod
    def of(cls, workers: int, environ: Mapping[str, str]) -> "Machine":
        """Return this machine.

        Args:
            workers: of this node.
            environ: of each of them.
        """
        limit, cores = read_cpu_limit(), IdleCpus().cores
        cpus = limit.cpus if limit is not None else os.cpu_count() or 1
        given = environ.get(OMP_NUM_THREADS, "")
        number = int(given) if given.isdecimal() else cores
        return cls(cpus, cores, workers, 0 if OMP_NUM_THREADS in os.environ else number)


class AutoTune:
    """The tuner of a job, while this node has rank 0."""

    def __init__(
        self,
        machine: Machine,
        file: TuneFile | None,
        note: Callable[[Event], None],
        show: Callable[[str], None] | None = None,
        *,
        retune: Callable[[Retune, bool], None],
        has_snapshot: Callable[[], bool],
    ) -> None:
        """Begin without workers.

        Args:
            machine: of the workers.
            file: has values of an earlier start, and keeps those that are accepted.
            note: receives events.
            show: prints a table at the end; None: there is none.
            retune: orders values for all ranks; with True, it accepts those in effect.
            has_snapshot: returns whether the workers of this node could continue from a snapshot.
        """
        self._machine = machine
        self._of_loader = of_loader(machine.cpus, machine.workers)
        kept = file.values.settings if file is not None else ()
        self._tuner = Tuner(
            self._of_loader, {name: value for name, value in kept if name in _LOADER}
        )
        self._file, self._note, self._show = file, note, show
        self._retune, self._has_snapshot = retune, has_snapshot
        self._group: WorkerGroup | None = None
        self._at: Assignment | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reported = 0
        """Trials whose lines were shown."""
        self._has_loader = False
        self._can_restart: bool | None = None
        """Whether there was a snapshot to continue from; None: nothing needs one."""
        self._ordered = Retune(0, ())
        """The values of the present round, as far as the master knows."""
        self._asked: Retune | None = None
        """Ordered for the next round; None: nothing is."""
        self._since_s: float | None = None
        """When the present round was ordered or has begun; None: a step is complete since."""
        self._restart_s = math.inf
        """The time from there to the end of the first steps, in the last round."""

    def begin(self, assignment: Assignment) -> None:
        """Start a round; it ends a trial of the last one, unless it was ordered for that trial."""
        self._stop()
        if not self._is_for_trial(assignment):
            cause = assignment.cause
            failure = cause.summary() if cause is not None and cause.trial else ""
            self._tuner.interrupt(failure)
            self._since_s = time.monotonic()
        self._asked = None
        self._report()
        if assignment.node_rank != 0:
            self._at = None
            return
        if self._at is None and self._tuner.kept:
            self._note(SettingsStarted(assignment.round, 0, dict(self._tuner.kept)))
        past = assignment.past or Past()
        kept = {name: value for name, value in self._tuner.kept.items() if name in _LOADER}
        self._tuner.kept = kept | decoded(Retune(0, past.values).in_effect)
        self._ordered = Retune(assignment.round, past.values, past.trial)
        self._at = assignment

    def _is_for_trial(self, assignment: Assignment) -> bool:
        """Return whether a round is the one that was ordered for a trial, in the same world."""
        asked, before, past = self._asked, self._at, assignment.past or Past()
        if asked is None or before is None or assignment.cause is not None:
            return False
        is_same = (assignment.node_rank, assignment.world_size) == (0, before.world_size)
        return is_same and (past.values, past.trial) == (asked.values, asked.trial)

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
        reason = _NO_SNAPSHOT if self._can_restart is False else ""
        if not self._has_loader and self._can_restart is None:
            reason = _NOTHING_TO_TRY
        ended = TuningEnded(dict(self._tuner.kept), self._gain, len(self._tuner.tried), reason)
        if self._show is not None and self._tuner.tried:
            self._show(_table(self._tuner.tried))
        self._note(ended)

    @property
    def _gain(self) -> float:
        """How much faster all accepted values are together, as a share."""
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
        if self._asked is not None:
            self._ask(self._asked)
            return
        reading = self._reading(group, watch)
        order = None
        if reading is not None:
            order = self._tuner.read(reading)
        elif self._has_stalled:
            self._tuner.interrupt("no step in ten times the usual time of a restart")
        else:
            if any(len(values) > 1 for _, values in watch.declared().values()):
                self._can_restart = self._has_snapshot()
            self._look_in(_FIRST_LOOK_S if watch.tuned() is None else _AGAIN_S)
            return
        self._report()
        if order is not None:
            self._pass_on(watch, order)
        wanted = self._wanted(order)
        if wanted.in_effect != self._ordered.in_effect:
            self._since_s = time.monotonic()
            self._ask(wanted)
            return
        if wanted != self._ordered:
            self._ordered = wanted
            self._retune(wanted, True)
        if order is None:
            self._stop()
            return
        self._look_in(order.look_in_s)

    @property
    def _has_stalled(self) -> bool:
        """Whether workers were restarted for a trial, and do no step."""
        if self._since_s is None or self._ordered.trial is None:
            return False
        return time.monotonic() - self._since_s > _STALLED_S + 10 * self._restart_s

    def _ask(self, wanted: Retune) -> None:
        """Order a round with other values, again and again until it starts."""
        self._asked = wanted
        self._retune(wanted, False)
        self._look_in(_REPEAT_S)

    def _wanted(self, order: Order | None) -> Retune:
        """Return the values for which workers must restart; one may be on trial."""
        kept = {**decoded(Retune(0, self._ordered.values).in_effect), **self._tuner.kept}
        trial = None
        values = tuple(_tuned(name, kept[name]) for name in kept if name not in _LOADER)
        if order is not None and (name := self._on_trial(order)) and name not in _LOADER:
            trial = _tuned(name, order.values[name])
        return Retune(self._ordered.round, values, trial)

    def _on_trial(self, order: Order) -> str:
        """Return the setting of which an order has the new value; empty: none."""
        trying = self._tuner.trying
        return trying[0] if order.is_trial and trying is not None else ""

    def _pass_on(self, watch: WorkerWatch, order: Order) -> None:
        if NUM_WORKERS not in order.values:
            return
        settings = tuning_page.pack(order.values[NUM_WORKERS], order.values[PREFETCH])
        watch.tune(settings | (tuning_page.TRIAL if self._on_trial(order) in _LOADER else 0))

    def _reading(self, group: WorkerGroup, watch: WorkerWatch) -> Reading | None:
        """Return what is known now; None: no step is complete, or one ends at this moment."""
        now = time.monotonic()
        tuned, phases = watch.tuned(), watch.phases(now)
        if tuned is None or phases is None:
            return None
        values: dict[str, Any] = {}
        if tuned.settings:
            processes, prefetch = tuning_page.unpack(tuned.settings)
            values = {NUM_WORKERS: processes, PREFETCH: prefetch}
            self._has_loader = True
        values |= self._restarted_values(watch)
        if self._since_s is not None:
            self._restart_s, self._since_s = tuned.at_s - self._since_s, None
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
            self._restart_s if self._can_restart else math.inf,
        )

    def _restarted_values(self, watch: WorkerWatch) -> Values:
        """Return the values in effect for which workers must restart."""
        values: dict[str, Any] = {}
        found: list[Knob] = []
        computing = watch.computing()
        if self._machine.threads and computing is not None and not computing.uses_device:
            ordered = decoded(self._ordered.in_effect)
            values[OMP_NUM_THREADS] = ordered.get(OMP_NUM_THREADS, self._machine.threads)
            found.append(threads(self._machine.cores, self._machine.workers))
        kept = dict(self._tuner.kept)
        for name, (value, others) in watch.declared().items():
            values[key_of(name)] = value
            found.append(of_script(name, others))
            if kept.get(key_of(name), value) not in others:
                del kept[key_of(name)]  # the script names others since then, and uses one of them
        self._tuner.kept = kept
        self._tuner.knobs = (*self._of_loader, *found)
        if any(knob.candidates(values[knob.name]) for knob in found):
            self._can_restart = self._has_snapshot()
        return values

    def _report(self) -> None:
        """Report the trials that have ended, and keep what was accepted."""
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
    """Return what was tried, a line each."""
    lines = ["Tried by --auto-tune on:"]
    for one in tried:
        found = one.outcome
        gain = f"{found.gain:+.1%}" if found.old_s else ""
        change = f"{one.old} -> {one.new}"
        lines.append(f"  {one.name:<16}{change:>10}{gain:>9}  {found.reason or 'accepted'}")
    return "\n".join(lines)


_NOTHING_TO_TRY = (
    "no step of a Checkpointer used a DataLoader with num_workers >= 1 (read with"
    " ElasticBatches.parts) or another setting to try"
)
_NO_SNAPSHOT = "OMP_NUM_THREADS and tuned values need snapshots of a Checkpointer"


def _tuned(name: str, value: Any) -> TunedValue:
    return TunedValue(name, encoded(value))
