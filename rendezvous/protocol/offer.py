"""What every node offers: a place for the store."""

from ...values import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """Where this node would host the store of the next round, if it got rank 0."""

    address: str
    port: int
