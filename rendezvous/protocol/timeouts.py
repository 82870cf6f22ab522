"""The times of a rendezvous that ``--rdzv-conf`` sets, in one place for all that carry them."""

from collections.abc import Sequence

from ... import defaults
from ...values import dataclass
from .endpoint import Endpoint
from .lease_messages import SuccessionSpec


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

    def succession(self, endpoints: Sequence[Endpoint]) -> SuccessionSpec | None:
        """Return what all hosts and nodes of a list must agree on; None where there is none."""
        if not endpoints:
            return None
        return SuccessionSpec(
            ",".join(map(str, endpoints)),
            self.lease_s,
            self.fence_s,
            self.node_timeout_s,
            self.node_grace_s,
        )


NO_TIMEOUTS_GIVEN = Timeouts()
"""All of them as they are by default."""
