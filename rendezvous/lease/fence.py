"""The fence: when a node that has no leader must have no workers. Pure.

A new leader starts workers without those that it cannot reach; it waits until these have fenced
themselves. The time without a leader counts from the moment at which the silence was too long, not
from the one at which that was noticed: a host that was frozen kills as soon as it thaws.
"""

import math

PAUSE_S = 1.5
"""Of a process that has something to do every second: it was frozen. A shorter pause is not noticed
and delays the fence; ``LeaseTimes.wait_s`` has room for it with clocks 5 % off either way."""

_REPORT_S = 2.0
"""Until a stream whose silence was too long is reported as lost."""


class Fence:
    """What one node knows of its time without a leader. All times are of its clock, in seconds."""

    def __init__(self, fence_s: float, silence_s: float, now: float) -> None:
        """Begin without a leader.

        Args:
            fence_s: how long workers outlive their leader; infinity: as long as they like.
            silence_s: after which silence a stream is given up.
            now: the time.
        """
        self._fence_s, self._silence_s = fence_s, silence_s
        self._awake = now
        self._pause = (-math.inf, -math.inf)
        """When this process was awake before it was frozen last, and when it thawed."""
        self._since: float | None = now
        """When the silence was too long; None while there is a leader."""
        self._is_guess = False
        """It may have been too long, in a pause; whether it was, the stream shows."""

    def tick(self, now: float) -> bool:
        """Take note that this process runs; return whether its workers must be killed.

        To be called before anything that has come from outside is looked at, and every second.
        """
        if now - self._awake > PAUSE_S:
            self._pause = (self._awake, now)
            if self._since is None and now - self._awake > self._silence_s:
                self._since = self._awake  # the silence may have begun long before
                self._is_guess = True
        elif self._is_guess and now - self._pause[1] > self._silence_s + _REPORT_S:
            # Only this process was held up, not the threads that keep its stream.
            self._since, self._is_guess = None, False
        self._awake = now
        return self.is_down(now)

    def is_down(self, now: float) -> bool:
        """Return whether no worker may live here."""
        return self._since is not None and now - self._since >= self._fence_s

    def lost(self, now: float) -> None:
        """The stream to the leader is no more."""
        self._is_guess = False
        if self._since is None:
            awake, thawed = self._pause
            self._since = awake if now - thawed <= self._silence_s else now

    def found(self, now: float) -> None:
        """A leader has taken this node in."""
        self._since, self._awake, self._pause = None, now, (-math.inf, -math.inf)
        self._is_guess = False

    def latest(self) -> float:
        """Return when the workers must be killed, should this process not run again before."""
        since = self._awake + self._silence_s if self._since is None else self._since
        return since + self._fence_s

    def deadline(self) -> float:
        """Return when the workers must be killed; infinity while there is a leader."""
        return math.inf if self._since is None else self._since + self._fence_s
