"""The fence: when a node without a leader must not have workers. No I/O, no clock.

A new leader starts workers without the nodes that it cannot reach; it waits until these have fenced
themselves. The time without a leader counts from the moment at which the silence exceeded its
limit, not from its detection: a frozen host kills its workers as soon as it thaws.
"""

import math

PAUSE_S = 1.5
"""A process that acts every second was frozen if it paused for this long. A shorter pause is not
detected and delays the fence; ``LeaseTimes.wait_s`` allows for it with clocks up to 5% off."""

_REPORT_S = 2.0
"""Maximum delay between a stream's silence limit and the report of its loss."""


class Fence:
    """A node's time without a leader. All times are in seconds of its clock."""

    def __init__(self, fence_s: float, silence_s: float, now: float) -> None:
        """Start without a leader.

        Workers may run for ``fence_s`` without one, infinity for no limit; a stream is considered
        lost after ``silence_s`` without a message.
        """
        self._fence_s, self._silence_s = fence_s, silence_s
        self._awake = now
        self._pause = (-math.inf, -math.inf)
        """When this process last ran before its last freeze, and when it thawed."""
        self._since: float | None = now
        """When the silence exceeded its limit; None while there is a leader."""
        self._is_guess = False
        """The limit may have been exceeded during a pause; the stream shows whether it was."""

    def tick(self, now: float) -> bool:
        """Record that this process runs; return whether its workers must be killed.

        Must be called every second, and before any input is processed.
        """
        if now - self._awake > PAUSE_S:
            self._pause = (self._awake, now)
            if self._since is None and now - self._awake > self._silence_s:
                self._since = self._awake  # the silence may have started long before
                self._is_guess = True
        elif self._is_guess and now - self._pause[1] > self._silence_s + _REPORT_S:
            # Only this process was blocked, not the threads that maintain its stream.
            self._since, self._is_guess = None, False
        self._awake = now
        return self.is_down(now)

    def is_down(self, now: float) -> bool:
        """Return whether this node must not have workers."""
        return self._since is not None and now - self._since >= self._fence_s

    def lost(self, now: float) -> None:
        """Record that the stream to the leader has ended."""
        self._is_guess = False
        if self._since is None:
            awake, thawed = self._pause
            self._since = awake if now - thawed <= self._silence_s else now

    def found(self, now: float, opened: float) -> None:
        """Record that a leader has accepted this node.

        If the stream was ``opened`` before a long pause, the answer may be from before it too, and
        another host may lead now.
        """
        awake, thawed = self._pause
        if opened < thawed and thawed - awake > self._silence_s:
            self._since, self._awake, self._is_guess = awake, now, True
            return
        self._since, self._awake, self._pause = None, now, (-math.inf, -math.inf)
        self._is_guess = False

    def latest(self) -> float:
        """Return when the workers must be killed if this process does not run before then."""
        since = self._awake + self._silence_s if self._since is None else self._since
        return since + self._fence_s

    def deadline(self) -> float:
        """Return when the workers must be killed; infinity while there is a leader."""
        return math.inf if self._since is None else self._since + self._fence_s
