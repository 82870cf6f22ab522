"""Events of the checkpoints that this node writes."""

from .event import Event, Severity


class CheckpointWritten(Event):
    """A checkpoint is complete."""

    step: int
    path: str
    bytes: int
    seconds: float
    is_last: bool
    """It was written because the job ends, or this node leaves."""

    def __str__(self) -> str:
        took = f"{self.bytes / 1e6:.1f} MB in {self.seconds:.1f} s"
        return f"The checkpoint of step {self.step} is complete: {self.path} ({took})."


class CheckpointFailed(Event):
    """A checkpoint that a worker asked for was not written."""

    step: int
    reason: str
    newest: int = -1
    """The step of the newest one that this node has made visible; -1: none."""

    severity = Severity.WARNING

    def __str__(self) -> str:
        has = f"; the newest complete one is of step {self.newest}" if self.newest >= 0 else ""
        return f"The checkpoint of step {self.step} was not written: {self.reason}{has}."


class BreakpointUnsaved(Event):
    """The newest snapshot was not written before the job ended, or this node left."""

    step: int
    reason: str

    severity = Severity.WARNING
    line = "The snapshot of step {step} is lost, no checkpoint of it was written: {reason}."
