"""Events of what ft-run has learnt about a job and uses from then on."""

from typing import Any

from .event import Event, RoundEvent, Severity


class MicroBatchChanged(RoundEvent, frozen=True):
    """The parts of ``ElasticBatches`` are smaller from this round on; the same on every node."""

    before: int
    """The samples of the parts that did not fit; 0: unknown, e.g. from ``--tune-file``."""
    after: int
    """The most samples of a part."""
    is_first: bool
    """It is the first such event of this agent."""

    name = "tuning.micro_batch"
    severity = Severity.WARNING

    def __str__(self) -> str:
        change = f"{self.before} -> {self.after}" if self.before else f"{self.after}"
        text = f"{self.at} micro_batch {change} on all ranks"
        if not self.is_first:
            return text
        return (
            f"{text}: the samples of each step stay the same; BatchNorm, dropout and losses across"
            " the samples of a batch see smaller parts"
        )


class TuneFileIgnored(Event, frozen=True):
    """``--tune-file`` is of another job, or cannot be read: there may be new values later."""

    path: str
    reason: str

    name = "tuning.file_ignored"
    line = "--tune-file {path} is ignored: {reason}"


class TuneFileNotWritten(Event, frozen=True):
    """``--tune-file`` could not be written."""

    path: str
    reason: str

    name = "tuning.file_failed"
    severity = Severity.WARNING
    line = "cannot write --tune-file {path}: {reason}"


class TuningMeasured(RoundEvent, frozen=True):
    """What ``--auto-tune advise`` has measured on this node; it follows ``round.progressed``.

    Sums are since the start of the round unless noted.
    """

    workers: int
    training_s: float
    """Of the first worker."""
    steps: int
    """Completed steps of the first worker."""
    batches: int
    """Taken from a ``DataLoader``; as the next five, of the worker that has waited longest."""
    wait_s: float
    """Waiting for batches; on a GPU, only while it was idle."""
    first_wait_s: float
    """Of ``wait_s``, for the first batches of iterators, e.g. of an epoch."""
    squares_s2: float
    """The sum of the squares of the other waits."""
    num_workers: int
    """Of the loader at present; so is the next one."""
    prefetch_factor: int
    cpus: float
    """CPUs that this node may use at once."""
    cores: int
    """Physical cores that it may use at once."""
    idle_cpu_s: float
    """Idle time of these CPUs, added up, since the first such event of this agent; -1: not
    known."""
    worker_cpu_s: float
    """CPU time of the first worker without its child processes, within ``worker_s``."""
    worker_s: float
    """Since its first step."""
    omp_num_threads: int
    """0: not set."""
    uses_device: bool
    """Whether the first worker uses an accelerator."""
    samples: int
    """How often the CPU was read on which a worker with a GPU ran, since the agent started."""
    far_samples: int
    """Of ``samples``, on a CPU of another socket than that of its GPU."""

    name = "tuning.measured"
    is_finite = True
    severity = Severity.DEBUG
    line = "{at} measured, training={training_s:.1f} s data_wait={wait_s:.1f} s"


class TuningAdvised(Event, frozen=True):
    """The advice of ``--auto-tune advise`` at the end; nothing was changed."""

    lines: tuple[str, ...]

    name = "tuning.advised"

    def __str__(self) -> str:
        return f"advice: {'; '.join(self.lines) or 'none'}"


class SettingsStarted(RoundEvent, frozen=True):
    """The job starts with the settings of ``--tune-file``, from an earlier job."""

    settings: dict[str, Any]
    """Loader settings by name."""

    name = "tuning.settings"

    def __str__(self) -> str:
        return f"{self.at} auto-tune: {_assigned(self.settings)} from --tune-file"


class TrialEnded(RoundEvent, frozen=True):
    """``--auto-tune on`` has tried a value; it is in effect if it was accepted."""

    setting: str
    """``num_workers`` or ``prefetch_factor``."""
    old: Any
    new: Any
    is_accepted: bool
    reason: str
    """Why it was not accepted; empty: it was."""
    gain: float
    """More steps a second, as a share: 0.1 are 10 %."""
    old_s: float
    """Seconds a step with the old value; 0: not measured."""

    name = "tuning.trial"

    def __str__(self) -> str:
        result = "accepted" if self.is_accepted else f"back to {self.old}, {self.reason}"
        text = f"{self.at} auto-tune: {self.setting} {self.old} -> {self.new}: {result}"
        if not self.old_s:
            return text
        before_ms, after_ms = self.old_s * 1e3, self.old_s / (1 + self.gain) * 1e3
        return f"{text} ({before_ms:.3g} -> {after_ms:.3g} ms a step, {self.gain:+.1%})"


class TuningEnded(Event, frozen=True):
    """What ``--auto-tune on`` has found, at the end of the job."""

    settings: dict[str, Any]
    """Accepted values, and those of ``--tune-file``."""
    gain: float
    """Of all values that this job has accepted."""
    trials: int
    reason: str
    """Why some or all settings could not be tuned; empty: all could."""

    name = "tuning.ended"

    def __str__(self) -> str:
        if self.reason and not self.trials and not self.settings:
            return f"auto-tune: nothing was tuned: {self.reason}"
        found = "no faster value was found"
        if self.settings:
            found = f"DataLoader({_assigned(self.settings)}), {self.gain:+.1%} steps/s"
        rest = f"; {self.reason}" if self.reason else ""
        return f"auto-tune: {self.trials} trial{'s' * (self.trials != 1)}: {found}{rest}"


def _assigned(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
