"""Events of the checkpoints that this node writes."""

from .event import Event, Severity


class CheckpointWritten(Event, frozen=True):
    """A checkpoint is complete."""

    step: int
    path: str
    bytes: int
    seconds: float
    is_last: bool
    """Whether it was written because the job ends, or this node leaves."""

    name = "checkpoint.written"
    is_finite = True

    def __str__(self) -> str:
        took = f"{self.bytes / 1e6:.1f} MB in {self.seconds:.2f} s"
        return f"checkpoint of step {self.step} saved: {self.path} ({took})"


class CheckpointFailed(Event, frozen=True):
    """A checkpoint that a worker requested was not written."""

    step: int
    reason: str
    newest: int = -1
    """The step of the newest complete checkpoint of this node; -1: none."""

    name = "checkpoint.failed"
    severity = Severity.WARNING

    def __str__(self) -> str:
        newest = f"; the newest complete one is that of step {self.newest}"
        has = newest if self.newest >= 0 else ""
        return f"checkpoint of step {self.step} not saved: {self.reason}{has}"


class CheckpointNotRemoved(Event, frozen=True):
    """An old checkpoint, beyond the number to keep, could not be removed."""

    reason: str

    name = "checkpoint.not_removed"
    severity = Severity.WARNING
    line = "an old checkpoint could not be removed: {reason}"


class SnapshotUnsaved(Event, frozen=True):
    """The newest snapshot was not written before the job ended, or this node left."""

    step: int
    reason: str

    name = "snapshot.unsaved"
    severity = Severity.WARNING
    line = "snapshot of step {step} lost, not saved as a checkpoint: {reason}"
