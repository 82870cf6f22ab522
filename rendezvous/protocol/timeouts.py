"""Time limits of a rendezvous, which ``--rdzv-conf`` sets."""

from collections.abc import Sequence

from msgspec import Struct

from ... import defaults
from .endpoint import Endpoint
from .lease_messages import SuccessionSpec

CONF_KEYS = (
    "join_timeout, last_call_timeout, node_grace, node_timeout, master_timeout, rescale_delay"
    " (or never), drain_timeout"
)
"""Keys of ``--rdzv-conf`` that the master of a job uses; their values are durations."""

_ON_THE_WAY = 0.02
"""Share of the silence that is reserved for querying the other nodes, and informing them."""


class Timeouts(Struct, frozen=True):
    """How long nodes and master wait for each other, in seconds (docs/reference/rdzv-conf.md)."""

    join_timeout_s: float = defaults.JOIN_TIMEOUT_S
    last_call_timeout_s: float = defaults.LAST_CALL_TIMEOUT_S
    node_grace_s: float = defaults.NODE_GRACE_S
    node_timeout_s: float = defaults.NODE_TIMEOUT_S
    master_timeout_s: float = defaults.MASTER_TIMEOUT_S
    connect_timeout_s: float = defaults.CONNECT_TIMEOUT_S
    lease_s: float = defaults.LEASE_S
    """With several endpoints: length of the leader's lease."""
    fence_s: float = defaults.FENCE_S
    """With several endpoints: how long workers outlive their leader; infinity for no limit."""
    drain_timeout_s: float = defaults.DRAIN_TIMEOUT_S
    """How long ranks can take to save a snapshot before the world grows; 0 if they save none."""

    @property
    def silence_s(self) -> float:
        """Time without a message after which a connection is considered lost.

        The grace follows it, and an unresponsive node must be lost within ``node_timeout_s``. A
        grace of half of that or more does not fit: then the silence is one half, and the node is
        lost later.
        """
        left = max(self.node_timeout_s - self.node_grace_s, self.node_timeout_s / 2)
        return left * (1 - _ON_THE_WAY)

    def succession_spec(self, endpoints: Sequence[Endpoint]) -> SuccessionSpec | None:
        """Return the options that all hosts and nodes of a list must share; None without a list."""
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
