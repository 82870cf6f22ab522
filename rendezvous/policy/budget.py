"""The restart budget: how many restarts are left, and how soon the next one may be. Pure.

Times are those of the group's clock, in seconds.
"""

from collections import deque
from collections.abc import Sequence

from ..protocol.messages import PolicySpec

FREE_BACKOFF_S = (0.0, 60.0)
"""Where no ``--restart-backoff`` was given: no budget ends restarts that are not counted, so they
are spaced."""

_FIRST_STEP_S = 1.0
"""The second restart's delay where the first has none."""

_CALM = 2.0
"""A round that ran for this many times the longest delay resets the spacing: the ratio of
Kubernetes, whose delay of at most 5 minutes is reset after 10."""


class RestartBudget:
    """The restarts of one job: how many count now, and what the next one costs in time."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()
        """When the counted restarts were, as far as they may still count."""
        self._in_succession = 0

    def used(self, total: int, policy: PolicySpec, now: float) -> int:
        """Return how many restarts count against ``--max-restarts`` now.

        Args:
            total: the restarts counted in the life of the job.
            policy: has the window; without one, all of them count.
            now: the time.
        """
        if not policy.restart_window_s:
            return total
        self._forget_old(policy.restart_window_s, now)
        return len(self._times)

    def count(self, policy: PolicySpec, now: float) -> None:
        """A restart is counted."""
        if policy.restart_window_s:
            self._times.append(now)

    def ages_s(self, policy: PolicySpec, now: float) -> tuple[int, ...]:
        """Return the ages of the restarts within the window, in whole seconds, oldest first."""
        if not policy.restart_window_s:
            return ()
        self._forget_old(policy.restart_window_s, now)
        return tuple(int(now - time) for time in self._times)

    def learn(self, ages_s: Sequence[int], now: float) -> None:
        """Take over what an earlier master counted: ages in seconds, as of now."""
        self._times = deque(sorted(now - age for age in ages_s))

    def _forget_old(self, window_s: float, now: float) -> None:
        while self._times and now - self._times[0] >= window_s:
            self._times.popleft()

    def delay_s(self, policy: PolicySpec, ran_s: float | None, *, is_free: bool) -> float:
        """Return how long the next round waits, and take note that there is one more restart.

        Args:
            policy: has the first and the longest delay.
            ran_s: how long the round ran that has ended; None where that is not known.
            is_free: the restart is not counted.
        """
        first, longest = policy.backoff_first_s, policy.backoff_max_s
        if not longest and is_free:
            first, longest = FREE_BACKOFF_S
        if ran_s is not None and ran_s > _CALM * longest:
            self._in_succession = 0
        number, self._in_succession = self._in_succession, self._in_succession + 1
        if not longest:
            return 0.0
        if number == 0:
            return first
        doublings = min(number if first else number - 1, 60)
        return min(longest, (first or _FIRST_STEP_S) * 2.0**doublings)
