"""What a cloud, a file or a signal says of this machine."""

from ...values import dataclass


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """This machine will be gone."""

    reason: str
    seconds: float
    """From now."""
