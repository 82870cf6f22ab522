"""The preemption notice of a cloud, a file or a signal."""

from msgspec import Struct


class PreemptionNotice(Struct, frozen=True):
    """This machine is being preempted."""

    reason: str
    seconds: float
    """Seconds from now until the machine is stopped."""
