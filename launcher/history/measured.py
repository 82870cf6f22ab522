"""Measurements of ``--auto-tune advise`` in a job: a fold over ``tuning.measured``.

It keeps only the measurements with the last settings.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ...events.record import Record

NAME: Final = "tuning.measured"
_SETTINGS: Final = ("workers", "num_workers", "prefetch_factor", "omp_num_threads")
_SUMS: Final = (
    *("training_s", "steps", "batches", "wait_s", "first_wait_s", "squares_s2"),
    *("worker_cpu_s", "worker_s", "samples", "far_samples"),
)
_MOST: Final = 1e12
_MOSTLY: Final = 0.5
"""Minimum share of training between two records, for their idle CPUs to count."""


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
        if record["name"] != NAME or not _is_sound(record):
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
