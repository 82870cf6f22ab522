"""The acceptor of PaxosLease: the vote of one listed host. No I/O, no clock.

It stores nothing on disk. A restarted acceptor does not know what it had accepted, so it votes only
after the longest lease has expired. A valid lease is never granted to another process, and requests
of other candidates during the lease do not raise the promised number: a host that is cut off from
the leader does not disturb the lease.
"""

import math

from msgspec.structs import replace

from ..protocol.lease_messages import NO_HOST, NO_ROUND, LeaseAnswer, LeaseAsk, LeaseStep

_JUMP_MAX = 1_000_000
"""Maximum difference of a proposed number from the highest known one: a single message, which any
unauthenticated client can send to a job without a token, must not use up the numbers. A restarted
host, which knows no number, asks the others and accepts their answers."""


class Acceptor:
    """The vote of one host. All times are in seconds of its own clock."""

    def __init__(self, lease_s: float, now: float) -> None:
        """``lease_s`` is the length of every lease; proposers with another length are refused."""
        self._lease_s = lease_s
        self.takes_part_at = now + lease_s
        self.highest = 0
        """The highest known number."""
        self._promised: tuple[int, str] = (0, "")
        """The highest promised number, and its process."""
        self._process: str | None = None
        self._number = 0
        """Number of the last accepted proposal."""
        self._host = NO_HOST
        self._term = 0
        self._given_back = 0
        """Last released number: requests with it can arrive late."""
        self.until = -math.inf
        """When the last accepted lease expires, by this host's clock."""
        self.formed = NO_ROUND
        """Term and number of the newest round that a leader has announced: it may have started."""
        self._announced_term = 0
        """Term of the newest round that a leader has announced to this process itself."""
        self._lowest_term = self._highest_term = 0
        """Of the terms of which a round may have started; 0 if there is none."""

    def leader(self, now: float) -> tuple[int, int] | None:
        """Return host and term of the valid lease; None if there is none."""
        return (self._host, self._term) if now < self.until else None

    def is_plausible(self, number: int) -> bool:
        """Return whether an unsolicited number is plausible for a listed host."""
        return number <= self.highest + _JUMP_MAX

    def learn(self, number: int) -> None:
        """Record a number, or the term of a lease, of another host."""
        self.highest = max(self.highest, number)

    def learn_round(self, term: int, number: int) -> None:
        """Record a round that a leader has announced; term 0 for none."""
        self.formed = max(self.formed, (term, number))
        self._learn_term(term)

    def learn_followed(self, term: int) -> None:
        """Record a term that a node has followed: a round of it may run there.

        Only the node knows it if all listed hosts were started again since.
        """
        self.learn(term)
        self._learn_term(term)

    def _learn_term(self, term: int) -> None:
        if term:
            self._lowest_term = min(self._lowest_term or term, term)
            self._highest_term = max(self._highest_term, term)

    def ask(self, ask: LeaseAsk, now: float) -> LeaseAnswer:
        """Answer a proposer."""
        # A majority can elect a leader of a lower term than the highest that this host knows.
        knows_earlier = not {self._lowest_term, self._highest_term} <= {0, ask.term}
        is_taken = False
        if self.is_plausible(ask.number):
            self.learn(ask.number)
            is_taken = self._take(ask, now)
        answer = LeaseAnswer(is_taken, self.highest, knows_earlier, *self.formed)
        return replace(answer, announced_term=self._announced_term)

    def _take(self, ask: LeaseAsk, now: float) -> bool:
        is_own = ask.process == self._process
        if ask.step.gives_back:
            is_last = is_own and ask.number >= self._number  # else the message is late
            if is_last:
                self.until, self._given_back = now, ask.number
            return is_last
        if round(self._lease_s * 1000) != ask.lease_ms:
            return False
        if now < self.takes_part_at:
            if ask.step is LeaseStep.PROPOSE:  # it may lead without this vote, and end the job
                self._process, self._number = ask.process, ask.number
            return False
        if now < self.until and not is_own:
            return False
        if ask.step is LeaseStep.PREPARE:
            # The same process asks twice if it is reached under several listed names.
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
        self.learn_round(ask.round_term, ask.round)
        self._announced_term = max(self._announced_term, ask.round_term)
        self.learn(max(ask.number, ask.term))
        return True
