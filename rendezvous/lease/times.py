"""Time limits that prevent two leaders from running workers simultaneously. Pure functions.

``docs/internals/leases.md`` derives them.
"""

import math

from msgspec import Struct

from ... import defaults

HELD = 0.9
"""Share of a lease for which its holder relies on it: clocks are up to 5% fast or slow."""
_NOTICED_LATE_S = 1.5
"""Maximum time from the end of a node's stream until it has found the new leader."""
KILL_S = 1.0
"""Maximum time for a kill."""


class LeaseTimes(Struct, frozen=True):
    """Time limits of a job with several endpoints, in seconds."""

    lease_s: float = defaults.LEASE_S
    fence_s: float = defaults.FENCE_S
    """Infinity if workers without a leader are not killed; then no leader waits."""
    silence_s: float = defaults.NODE_TIMEOUT_S - defaults.NODE_GRACE_S
    """Time without a message after which a stream is considered lost."""

    @property
    def held_s(self) -> float:
        """How long the holder of a lease relies on it, by its own clock."""
        return self.lease_s * HELD

    @property
    def renew_s(self) -> float:
        """Interval of renewals."""
        return self.lease_s / 3

    @property
    def wait_s(self) -> float:
        """How long a new leader starts no worker, until those of an earlier leader are dead."""
        if self.fence_s == math.inf:
            return 0.0
        return self.renew_s + self.silence_s + self.fence_s + KILL_S

    @property
    def takeover_grace_s(self) -> float:
        """How long a new leader waits for the members of the running round.

        The earlier leader had been absent for two thirds of a lease when this one was elected.
        """
        return max(0.0, self.silence_s - 2 * self.renew_s) + _NOTICED_LATE_S
