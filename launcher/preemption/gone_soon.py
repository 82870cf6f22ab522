"""What is known of a node that will be gone."""

from ...values import dataclass


@dataclass(frozen=True, slots=True)
class GoneSoon:
    """This node will be gone, as its cloud or a signal says."""

    reason: str
    seconds: float
    """From now."""
