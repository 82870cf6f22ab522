"""The times that prevent two leaders from running workers at the same time. Pure.

``docs/internals/leases.md`` derives them.
"""

import math

from msgspec import Struct

from ... import defaults

HELD = 0.9
"""Share of a lease for which its holder relies on it: clocks are up to 5 % fast or slow."""
_NOTICED_LATE_S = 1.5
"""From the end of its stream until a node has found the new leader."""
KILL_S = 1.0
"""How long a kill may take."""


class LeaseTimes(Struct, frozen=True):
    """The times of a job with several endpoints, in seconds."""

    lease_s: float = defaults.LEASE_S
    fence_s: float = defaults.FENCE_S
    """Infinity: workers without a leader are not killed, and no leader waits."""
    silence_s: float = defaults.NODE_TIMEOUT_S - defaults.NODE_GRACE_S
    """The silence after which a stream is considered lost."""

    @property
    def held_s(self) -> float:
        """How long the holder of a lease relies on it, by its own clock."""
        return self.lease_s * HELD

    @property
    def renew_s(self) -> float:
        """How often a lease is renewed."""
        return self.lease_s / 3

    @property
    def wait_s(self) -> float:
        """How long a new leader starts no worker: those of an earlier leader are dead by then."""
        if self.fence_s == math.inf:
            return 0.0
        return self.renew_s + self.silence_s + self.fence_s + KILL_S

    @property
    def takeover_grace_s(self) -> float:
        """How long a new leader waits for the members of the running round.

        The earlier leader had been absent for two thirds of a lease when this one was elected.
        """
        return max(0.0, self.silence_s - 2 * self.renew_s) + _NOTICED_LATE_S
