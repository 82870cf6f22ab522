"""Leader election on one listed host: PaxosLease's proposer and its acceptor. No I/O, no clock.

Each request is sent to all other hosts, which may or may not answer. The *term* is the number with
which a lease was won. It does not change when the lease is renewed, even if a renewal needs a
higher number because another host has requested the lease since.

The lease carries the newest round. No worker of a round is started before a majority knows the
round, so the next leader never considers an older one the newest. It is announced when the previous
round is being stopped, not earlier: otherwise the next leader could not know whether it has
started.
"""

import math
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from ..protocol.lease_messages import NO_ROUND, LeaseAnswer, LeaseAsk, LeaseStep
from .acceptor import Acceptor
from .times import LeaseTimes

_OUTBID = 0.3
"""Share of the time limit for answers after which a candidate that was refused once retries."""


class _Attempt(Struct):
    """A pending request to all hosts."""

    ask: LeaseAsk
    since: float
    """When it was sent; a lease that it wins counts from this time."""
    accepted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    announced_terms: set[int] = field(default_factory=set)
    """Terms of the newest rounds that were announced to the hosts that accepted it."""


class Elector:
    """Requests the lease if no host leads. All times are in seconds of this host's clock."""

    def __init__(
        self,
        hosts: int,
        own: int,
        process: str,
        times: LeaseTimes,
        now: float,
        chance: Callable[[], float],
    ) -> None:
        """``own`` is this host's position in the list, ``process`` a random ID of this process.

        ``chance`` returns random numbers from 0 to 1, so that candidates do not collide forever.
        """
        self._hosts, self._own, self._process = hosts, own, process
        self._times = times
        self._chance = chance
        self.acceptor = Acceptor(times.lease_s, now)
        self.term = 0
        """Term of this process's current or last lease."""
        self._number = 0
        self._held_until = -math.inf
        self._is_outbid = False
        self._attempt: _Attempt | None = None
        self._next_at = self.acceptor.takes_part_at + own * self._pause_s() / hosts
        self._vouched: tuple[int, set[int]] = (0, set())
        """A term, and the hosts that know no earlier round."""
        self._newest = self.announced = NO_ROUND
        """Term and number of the newest round, and of the newest that a majority knows."""
        self.known = NO_ROUND
        """Newest round of an earlier leader when this one was elected."""
        self.quorum_term = 0
        """Term of the newest round that was announced to each host of the electing majority; 0 if
        they differ. What a restarted host has learned from another one does not count: a round
        between may have been announced to it before."""

    # --- state -------------------------------------------------------------------------------

    def leads(self, now: float) -> bool:
        """Return whether this process has the lease."""
        return now < self._held_until

    @property
    def is_first(self) -> bool:
        """Whether all listed hosts have answered, and none knows of a round of an earlier leader.

        A leader announces a round to a majority before the first worker starts.
        """
        term, hosts = self._vouched
        return term == self.term and len(hosts) == self._hosts

    def leader(self, now: float) -> tuple[int, int] | None:
        """Return host and term of the leader, as far as this host knows; None if unknown."""
        if self.leads(now):
            return self._own, self.term
        known = self.acceptor.leader(now)
        return known if known is not None and known[0] != self._own else None

    def lease_left_s(self, now: float) -> float:
        """Return how long this process can rely on its lease, in seconds."""
        return max(0.0, self._held_until - now)

    def deadline(self) -> float:
        """Return when ``due`` must be called next."""
        attempt = self._attempt
        next_at = self._next_at if attempt is None else self._gives_up_at(attempt)
        return min(next_at, self._held_until) if self._held_until > -math.inf else next_at

    # --- requests and answers ----------------------------------------------------------------

    def answer(self, ask: LeaseAsk, now: float) -> LeaseAnswer:
        """Answer the request of another host."""
        answer = self.acceptor.ask(ask, now)
        if ask.step.gives_back and answer.accepted:
            self._next_at = now + self._pause_s()
        return replace(answer, host=self._own)

    def observe(self, term: int, now: float) -> LeaseAsk | None:
        """Record that a node follows a leader of this term; a leader of a lower one resigns."""
        if not self.acceptor.is_plausible(term):
            return None
        self.acceptor.learn_followed(term)
        return self.give_back(now) if self.leads(now) and term > self.term else None

    def announce(self, newest: tuple[int, int], now: float) -> LeaseAsk | None:
        """Announce a round, by term and number, to a majority; return the request to send."""
        self._newest, self._next_at = newest, now
        return self.due(now)

    def give_back(self, now: float, exit_code: int | None = None) -> LeaseAsk | None:
        """Release the lease; return the request to send to all other hosts.

        ``exit_code`` is the job's, if it has ended and all nodes have received the verdict.
        """
        held = self._ask(LeaseStep.RELEASE, self._last_number)
        if exit_code is not None:
            held = replace(held, step=LeaseStep.END, exit_code=exit_code)
        elif not self.leads(now):
            return None
        return self._release(held, now)

    def due(self, now: float) -> LeaseAsk | None:
        """Process expired deadlines; return the request to send to all other hosts."""
        attempt = self._attempt
        if self._held_until > -math.inf and not self.leads(now):
            # The votes for a renewal without a majority would prevent the election of others.
            return self._release(self._ask(LeaseStep.RELEASE, self._last_number), now)
        if attempt is not None and now >= self._gives_up_at(attempt):
            return self._give_up_attempt(now)
        if self._attempt is not None or now < self._next_at:
            return None
        if self.leads(now):
            if not self._is_outbid:
                return self._begin(self._ask(LeaseStep.PROPOSE, self._number), now)
            return self._begin(self._ask(LeaseStep.PREPARE, self._next_number()), now)
        quiet_until = max(self.acceptor.takes_part_at, self.acceptor.until)
        if now < quiet_until:
            self._next_at = quiet_until + self._pause_s()
            return None
        return self._begin(self._ask(LeaseStep.PREPARE, self._next_number()), now)

    def receive(self, host: int, ask: LeaseAsk, answer: LeaseAnswer, now: float) -> LeaseAsk | None:
        """Process the answer of a host; return the request to send to all other hosts."""
        self.acceptor.learn(answer.highest)
        self.acceptor.learn_round(answer.round_term, answer.round)
        if ask.step is LeaseStep.PROPOSE and not answer.knows_earlier:
            self._vouch(host, ask.term)
        attempt = self._attempt
        if attempt is None or ask is not attempt.ask:
            return None  # even if it is equal: a late answer to an earlier renewal
        if not answer.accepted:
            if self.leads(now) and ask.step is LeaseStep.PROPOSE and answer.highest > ask.number:
                self._is_outbid = True
                self._attempt, self._next_at = None, now
                return self.due(now)
            attempt.refused.add(host)
            is_over = len(attempt.refused) > self._hosts // 2
            return self._give_up_attempt(now) if is_over else None
        attempt.accepted.add(host)
        attempt.announced_terms.add(answer.announced_term)
        if len(attempt.accepted) <= self._hosts // 2:
            return None
        if ask.step is LeaseStep.PREPARE:
            return self._begin(replace(ask, step=LeaseStep.PROPOSE), now)
        return self._win(attempt, now)

    # --- attempts ----------------------------------------------------------------------------

    def _ask(self, step: LeaseStep, number: int) -> LeaseAsk:
        is_held = self._held_until > -math.inf
        term = self.term if is_held else number
        lease_ms = round(self._times.lease_s * 1000)
        newest = self._newest if is_held else NO_ROUND
        return LeaseAsk(step, self._own, self._process, number, term, lease_ms, *newest)

    @property
    def _last_number(self) -> int:
        return self._number if self._attempt is None else self._attempt.ask.number

    def _next_number(self) -> int:
        """Return a number above all known ones that no other host uses."""
        return (self.acceptor.highest // self._hosts + 1) * self._hosts + self._own

    def _begin(self, ask: LeaseAsk, now: float) -> LeaseAsk | None:
        """Return the request, if this host votes for it: its own vote is required."""
        self._attempt = _Attempt(ask, now)
        own = self.acceptor.ask(ask, now)
        if not own.accepted:
            self._attempt, self._next_at = None, now + self._pause_s()
            return None
        self._attempt.accepted.add(self._own)
        self._attempt.announced_terms.add(own.announced_term)
        if ask.step is LeaseStep.PROPOSE and not own.knows_earlier:
            self._vouch(self._own, ask.term)
        return ask

    def _gives_up_at(self, attempt: _Attempt) -> float:
        """Return until when a request waits for answers.

        Hosts that are down do not answer. With one of three down, two candidates that collide would
        both wait for it, and an election would take as long as both of their requests.
        """
        is_outbid = bool(attempt.refused) and self._held_until == -math.inf
        return attempt.since + self._times.renew_s * (_OUTBID if is_outbid else 1.0)

    def _vouch(self, host: int, term: int) -> None:
        if self._vouched[0] != term:
            self._vouched = (term, set())
        self._vouched[1].add(host)

    def _give_up_attempt(self, now: float) -> LeaseAsk | None:
        """Retry later; release votes without a majority, which would block for a whole lease."""
        attempt, self._attempt = self._attempt, None
        self._next_at = now + self._pause_s()
        if attempt is None or attempt.ask.step is not LeaseStep.PROPOSE or self.leads(now):
            return None
        held = replace(attempt.ask, step=LeaseStep.RELEASE)
        self.acceptor.ask(held, now)
        return held

    def _release(self, held: LeaseAsk, now: float) -> LeaseAsk:
        self._lose(now)
        self.acceptor.ask(held, now)
        return held

    def _win(self, attempt: _Attempt, now: float) -> LeaseAsk | None:
        if not self.leads(now):
            self.term, self.known = attempt.ask.term, self.acceptor.formed
            is_known_to_all = attempt.announced_terms == {self.known[0]}
            self.quorum_term = self.known[0] if is_known_to_all else 0
        self._number, self._is_outbid = attempt.ask.number, False
        self._held_until = attempt.since + self._times.held_s
        self._next_at = attempt.since + self._times.renew_s
        self._attempt = None
        self.announced = attempt.ask.round_term, attempt.ask.round
        return self.announce(self._newest, now) if self.announced != self._newest else None

    def _lose(self, now: float) -> None:
        self._held_until = -math.inf
        self._attempt, self._is_outbid = None, False
        self._newest = self.announced = NO_ROUND
        self._next_at = now + self._pause_s()

    def _pause_s(self) -> float:
        return self._times.renew_s * (0.1 + 0.4 * self._chance())
