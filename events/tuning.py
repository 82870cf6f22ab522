"""Events of what ft-run has learnt about a job and uses from then on."""

from .event import Event, RoundEvent, Severity


class MicroBatchChanged(RoundEvent):
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


class TuneFileIgnored(Event):
    """``--tune-file`` is of another job, or cannot be read: there may be new values later."""

    path: str
    reason: str

    name = "tuning.file_ignored"
    line = "--tune-file {path} is ignored: {reason}"


class TuneFileNotWritten(Event):
    """``--tune-file`` could not be written."""

    path: str
    reason: str

    name = "tuning.file_failed"
    severity = Severity.WARNING
    line = "cannot write --tune-file {path}: {reason}"
