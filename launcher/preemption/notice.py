"""The preemption notice of a cloud, a file or a signal."""

from ...values import dataclass


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """This machine is being preempted."""

    reason: str
    seconds: float
    """Seconds from now until the machine is stopped."""
