"""The times of a rendezvous that ``--rdzv-conf`` sets, in one place for all that carry them."""

from ... import defaults
from ...values import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long nodes and their master wait for each other, in seconds (docs/faults.md)."""

    join_timeout_s: float = defaults.JOIN_TIMEOUT_S
    last_call_timeout_s: float = defaults.LAST_CALL_TIMEOUT_S
    node_grace_s: float = defaults.NODE_GRACE_S
    node_timeout_s: float = defaults.NODE_TIMEOUT_S
    master_timeout_s: float = defaults.MASTER_TIMEOUT_S
    connect_timeout_s: float = defaults.CONNECT_TIMEOUT_S
    lease_s: float = defaults.LEASE_S
    """With several endpoints: of the one that leads."""
    fence_s: float = defaults.FENCE_S
    """With several endpoints: how long workers outlive their leader; infinity: no limit."""


NO_TIMEOUTS_GIVEN = Timeouts()
"""All of them as they are by default."""
