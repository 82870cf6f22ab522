"""The restart budget: how many restarts are left, and the delay of the next one.

Times are in seconds of the group's clock.
"""

from collections import deque
from collections.abc import Sequence

from ..protocol.messages import PolicySpec

FREE_BACKOFF_S = (0.0, 60.0)
"""Used without ``--restart-backoff``: no budget limits restarts that are not counted, so they are
delayed."""

_FIRST_STEP_S = 1.0
"""The second restart's delay if the first has none."""

_CALM = 2.0
"""A round that ran for this many times the longest delay resets the delay: the ratio of Kubernetes,
whose delay of at most 5 minutes is reset after 10."""


class RestartBudget:
    """The restarts of one job: how many count now, and the delay of the next one."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()
        """Times of the counted restarts that may still count."""
        self._in_succession = 0

    def used(self, total: int, policy: PolicySpec, now: float) -> int:
        """Return how many restarts currently count against ``--max-restarts``.

        ``total`` are the restarts since the start of the job; without a window, all of them count.
        """
        if not policy.restart_window_s:
            return total
        self._forget_old(policy.restart_window_s, now)
        return len(self._times)

    def count(self, policy: PolicySpec, now: float) -> None:
        """Count a restart."""
        if policy.restart_window_s:
            self._times.append(now)

    def ages_s(self, policy: PolicySpec, now: float) -> tuple[int, ...]:
        """Return the ages of the restarts within the window, in whole seconds, oldest first."""
        if not policy.restart_window_s:
            return ()
        self._forget_old(policy.restart_window_s, now)
        return tuple(int(now - time) for time in self._times)

    def learn(self, ages_s: Sequence[int], now: float) -> None:
        """Take over the restarts that an earlier master counted: their current ages in seconds."""
        self._times = deque(sorted(now - age for age in ages_s))

    def _forget_old(self, window_s: float, now: float) -> None:
        while self._times and now - self._times[0] >= window_s:
            self._times.popleft()

    def delay_s(self, policy: PolicySpec, ran_s: float | None, *, is_free: bool) -> float:
        """Record one more restart; return the delay of the next round in seconds.

        Args:
            policy: has the first and the longest delay.
            ran_s: how long the ended round ran, in seconds; None if unknown.
            is_free: whether the restart is not counted.
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
