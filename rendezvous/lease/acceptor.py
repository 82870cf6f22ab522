"""One vote: what a listed host has promised, and to which process. PaxosLease's acceptor. Pure.

It keeps nothing on a disk. One that was started again does not know what it had accepted, so it
takes part only when the longest lease is over. A lease that runs is never given to another
process, and a candidate that asks meanwhile does not raise what was promised: a host that is cut
off from the leader disturbs nothing.
"""

import math

from ..protocol.lease_messages import NO_HOST, NO_ROUND, LeaseAnswer, LeaseAsk, LeaseStep

_JUMP_MAX = 1_000_000
"""A number that is asked with may be so far above what this host knows: one message, which any
stranger may send where there is no token, must not use up the numbers. A host that was started
again, and knows of none, asks the others by itself, and believes what they answer."""


class Acceptor:
    """The vote of one host. All times are of its own clock, in seconds."""

    def __init__(self, lease_s: float, now: float) -> None:
        """Begin with no memory.

        Args:
            lease_s: of every lease; a proposer with another one is refused.
            now: the time.
        """
        self._lease_s = lease_s
        self.takes_part_at = now + lease_s
        self.highest = 0
        """The highest number that was seen."""
        self._promised: tuple[int, str] = (0, "")
        """The highest number that was promised, and to which process."""
        self._process: str | None = None
        self._number = 0
        """Of the proposal that was accepted last."""
        self._host = NO_HOST
        self._term = 0
        self._given_back = 0
        """The number that was given back last: what it asked for may arrive only now."""
        self.until = -math.inf
        """When the lease that was accepted last ends here."""
        self._first_term = 0
        """Of the first lease that this process has known of; 0: none."""
        self.formed = NO_ROUND
        """Term and number of the newest round that a leader has told of: it may have begun."""

    def leader(self, now: float) -> tuple[int, int] | None:
        """Return host and term of the lease that runs here."""
        return (self._host, self._term) if now < self.until else None

    def believes(self, number: int) -> bool:
        """Return whether a number that was not asked for can be that of a listed host."""
        return number <= self.highest + _JUMP_MAX

    def learn(self, number: int, term: int = 0) -> None:
        """Take note of a number, and of the term of a lease, that were seen elsewhere."""
        self.highest = max(self.highest, number, term)
        if term:
            self._first_term = min(self._first_term or term, term)

    def ask(self, ask: LeaseAsk, now: float) -> LeaseAnswer:
        """Answer a proposer."""
        knows_earlier = bool(ask.term) and 0 < self._first_term < ask.term
        is_taken = False
        if self.believes(ask.number):
            self.learn(ask.number)
            is_taken = self._take(ask, now)
        return LeaseAnswer(is_taken, self.highest, knows_earlier, *self.formed)

    def _take(self, ask: LeaseAsk, now: float) -> bool:
        is_own = ask.process == self._process
        if ask.step.gives_back:
            is_last = is_own and ask.number >= self._number  # or it comes late, after the next one
            if is_last:
                self.until, self._given_back = now, ask.number
            return is_last
        if now < self.takes_part_at or round(self._lease_s * 1000) != ask.lease_ms:
            return False
        if now < self.until and not is_own:
            return False
        if ask.step is LeaseStep.PREPARE:
            # The same process asks again where several listed names are those of this host.
            promise = (ask.number, ask.process)
            if ask.number <= self._promised[0] and promise != self._promised:
                return False
            self._promised = promise
            return True
        if ask.number < self._promised[0] or ask.number <= self._given_back:
            return False
        self._promised = (ask.number, ask.process)
        self._process, self._number = ask.process, ask.number
        self._host, self._term = ask.host, ask.term
        self.until = now + self._lease_s
        self.formed = max(self.formed, (ask.round_term, ask.round))
        self.learn(ask.number, ask.term)
        return True
