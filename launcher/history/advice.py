"""Advice for a better use of this node (``--auto-tune advise``). No I/O, no clock.

A fold over ``tuning.measured`` keeps the measurements with the last settings. Each line contains
only numbers measured in this job. There is none if nothing can be gained, or the job was too short.
If training waits for data and no setting would help, a line says why.
"""

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ...events.event import Event
from ...events.record import Record
from ...events.tuning import TuningAdvised, TuningMeasured

_SETTINGS: Final = ("workers", "num_workers", "prefetch_factor", "omp_num_threads")
_SUMS: Final = (
    *("training_s", "steps", "batches", "wait_s", "first_wait_s", "squares_s2"),
    *("worker_cpu_s", "worker_s", "samples", "far_samples"),
)
_MOST: Final = 1e12
_MOSTLY: Final = 0.5
"""Minimum share of training between two records, for their idle CPUs to count."""

_LEAST_S: Final = 10.0
_LEAST_COUNT: Final = 20
"""Minimum number of batches, steps or samples."""
_DATA_WAIT: Final = 0.05
_RARE: Final = 0.5
"""With a starved loader of w processes, training waits for at least one of w batches; with a loader
that is fast enough on average, for less than this share of that."""
_PREFETCH_MAX: Final = 32
_BUSY: Final = 0.8
"""Share of ``OMP_NUM_THREADS`` in use from which more threads may help."""
_GAIN: Final = 2
"""Minimum factor of threads to advise."""
_FAR: Final = 0.5
_IDLE: Final = 0.8
"""A CPU or core that is idle for this share of the time can be used."""


class Measured(Struct, frozen=True):
    """Sums over the rounds with the same settings; the fields are the same as in the event."""

    workers: int
    num_workers: int
    prefetch_factor: int
    omp_num_threads: int
    cpus: float
    cores: int
    uses_device: bool = False
    training_s: float = 0.0
    steps: int = 0
    batches: int = 0
    wait_s: float = 0.0
    first_wait_s: float = 0.0
    squares_s2: float = 0.0
    idle_cpu_s: float = 0.0
    idle_of_s: float = 0.0
    """The time that ``idle_cpu_s`` refers to; 0 if unknown."""
    worker_cpu_s: float = 0.0
    worker_s: float = 0.0
    samples: int = 0
    far_samples: int = 0

    @property
    def data_wait(self) -> float:
        """Share of training time."""
        return self.wait_s / self.training_s if self.training_s else 0.0

    @property
    def idle_cpus(self) -> float | None:
        """Number of CPUs that were idle while workers trained; None if unknown."""
        return self.idle_cpu_s / self.idle_of_s if self.idle_of_s else None

    @property
    def busy_threads(self) -> float:
        """Number of CPUs that the first worker kept busy, without its child processes."""
        return self.worker_cpu_s / self.worker_s if self.worker_s else 0.0


class Measures:
    """The fold; ``add`` the records of one node in order."""

    def __init__(self) -> None:
        self.measured: Measured | None = None
        self._last: Record | None = None

    def add(self, record: Record) -> None:
        """Process the next event."""
        if record["name"] != TuningMeasured.name or not _is_sound(record):
            return
        last, self._last = self._last, record
        if last is None or any(last[key] != record[key] for key in ("node", "attempt", "round")):
            return
        sums = self.measured
        if sums is not None and sums.batches and not record["batches"]:
            return  # a round that has just started
        has_loader = last["batches"] > 0
        if has_loader and any(last[name] != record[name] for name in _SETTINGS):
            self.measured = None
            return
        if sums is None or any(getattr(sums, name) != record[name] for name in _SETTINGS):
            sums = Measured(**{name: record[name] for name in (*_SETTINGS, "cpus", "cores")})
        self.measured = _with(sums, last, record)


def _is_sound(record: Record) -> bool:
    """Return whether the numbers are plausible: a file may contain any."""
    numbers = (record[name] for name in (*_SUMS, *_SETTINGS, "idle_cpu_s", "cpus", "cores"))
    return record["workers"] > 0 and all(-1 <= number <= _MOST for number in numbers)


def _with(sums: Measured, last: Record, record: Record) -> Measured:
    more = {name: record[name] - last[name] for name in _SUMS}
    passed_s = record["uptime_s"] - last["uptime_s"]
    if min(passed_s, *more.values()) < 0:
        return sums  # another process
    if record["idle_cpu_s"] >= 0 and more["training_s"] >= _MOSTLY * passed_s:
        more["idle_cpu_s"] = max(0.0, record["idle_cpu_s"] - last["idle_cpu_s"])
        more["idle_of_s"] = passed_s
    changed = {name: getattr(sums, name) + value for name, value in more.items()}
    return replace(sums, uses_device=record["uses_device"], **changed)


class Advice(Struct, frozen=True):
    """One setting that would improve the use of the node, or the reason why none would."""

    setting: str
    now: str
    """The current value; empty if there is none."""
    advised: str
    """The advised value; empty if no value would certainly help."""
    text: str


def advice(measured: Measured) -> tuple[Advice, ...]:
    """Return the settings to change, the largest expected gain first."""
    found = (_loader(measured), _threads(measured), _sockets(measured))
    return tuple(one for one in found if one is not None)


def advised(found: Sequence[Advice]) -> Event:
    """Return the event with the advice at the end of the job."""
    return TuningAdvised(tuple(one.text for one in found))


def _loader(measured: Measured) -> Advice | None:
    """Advise more loader processes, or more prefetched batches.

    The first batches of iterators are excluded, as neither makes them earlier. Let c be the time
    per batch without waiting and s the share of waiting. A starved loader of w processes takes w c
    / (1 - s) per batch, so w / (1 - s) processes are as fast as training; without processes, a
    batch takes c s / (1 - s). A loader that is fast enough on average, but has waits of m, must
    start m earlier: m / c batches.
    """
    computing_s = max(measured.training_s - measured.wait_s, 0.001 * measured.training_s)
    wait_s = measured.wait_s - measured.first_wait_s
    share = wait_s / (computing_s + wait_s) if wait_s > 0 else 0.0
    is_known = measured.training_s >= _LEAST_S and measured.batches >= _LEAST_COUNT
    if not is_known or measured.data_wait < _DATA_WAIT:
        return None
    if share < _DATA_WAIT:
        text = f"data wait {measured.data_wait:.0%}, mostly for the first batches of epochs"
        return _unhelped("persistent_workers", "", f"{text}: persistent_workers=True may help")
    reason, processes = f"data wait {share:.0%}", measured.num_workers
    usual_s = measured.squares_s2 / wait_s
    if processes and wait_s * processes < _RARE * measured.batches * usual_s:
        before = measured.prefetch_factor
        batches = usual_s / (computing_s / measured.batches)
        after = before + math.ceil(batches / processes)
        reason += f" in bursts of {usual_s:.2g} s"
        if after > _PREFETCH_MAX:
            text = f"{reason}: too long to be hidden by prefetch_factor"
            return _unhelped("prefetch_factor", str(before), text)
        return _changed("prefetch_factor", before, after, reason)
    idle = measured.idle_cpus
    if idle is None:
        return None
    wanted = (processes or share) / (1 - share)
    more = min(math.ceil(wanted) - processes, _whole(idle / measured.workers))
    if more < 1:
        few = f"only {idle:.2g} of {measured.cpus:g} CPUs are idle for {measured.workers} workers"
        reason += f", but {few if _whole(idle) else 'no CPU is idle'}"
        text = f"{reason}: more loader processes would not help"
        return _unhelped("num_workers", str(processes), text)
    reason += f", {idle:.2g} of {measured.cpus:g} CPUs idle"
    return _changed("num_workers", processes, processes + more, reason)


def _threads(measured: Measured) -> Advice | None:
    threads, idle = measured.omp_num_threads, measured.idle_cpus
    is_known = measured.worker_s >= _LEAST_S and measured.steps >= _LEAST_COUNT
    if not is_known or measured.uses_device or not threads or idle is None:
        return None
    if measured.busy_threads < _BUSY * threads:
        return None
    # A busy CPU can be any hardware thread of a core.
    idle_cores = _whole(measured.cores - (measured.cpus - idle))
    after = min(threads + idle_cores // measured.workers, measured.cores // measured.workers)
    if after < _GAIN * threads:
        return None
    cores = f"{idle_cores} idle core{'s' * (idle_cores != 1)}"
    text = f"OMP_NUM_THREADS={threads} beside {cores} and no GPU"
    return Advice("OMP_NUM_THREADS", str(threads), str(after), f"{text}: {after} would use them")


def _whole(idle: float) -> int:
    return int(idle + 1 - _IDLE)


def _sockets(measured: Measured) -> Advice | None:
    far, samples = measured.far_samples, measured.samples
    if samples < _LEAST_COUNT or far < _FAR * samples:
        return None
    text = f"workers run on other sockets' CPUs than their GPUs ({far} of {samples} reads)"
    return Advice("--numa-binding", "", "node", f"{text}: --numa-binding node")


def _unhelped(setting: str, now: str, text: str) -> Advice:
    return Advice(setting, now, "", text)


def _changed(setting: str, before: int, after: int, reason: str) -> Advice:
    return Advice(setting, str(before), str(after), f"{reason}: {setting} {before} -> {after}")
