"""The rules that keep the worlds of two leaders apart, and how ``break_rules`` breaks each."""

LEASE_BREAKS = (
    (
        "a lost member costs a restart, fenced or not",
        "group/takeover",
        "if gone and has_term:",
        "if False:",
    ),
    (
        "an acceptor that was started again does not vote at once",
        "lease/acceptor",
        "self.takes_part_at = now + lease_s",
        "self.takes_part_at = now",
    ),
    (
        "a lease that runs is not given to another",
        "lease/acceptor",
        "if now < self.until and not is_own:",
        "if False:",
    ),
    (
        "a number far above all that are known is not believed",
        "lease/acceptor",
        "return number <= self.highest + _JUMP_MAX",
        "return True",
    ),
    (
        "a leader knows the newest round of the one before",
        "lease/elector",
        "self.acceptor.formed = max(self.acceptor.formed, (answer.round_term, answer.round))",
        "pass",
    ),
    (
        "what was promised to a higher number is kept",
        "lease/acceptor",
        "if ask.number < self._promised[0] or",
        "if",
    ),
    (
        "a promise is given again to the process that has it alone",
        "lease/acceptor",
        "promise = (ask.number, ask.process)",
        "promise = (ask.number, self._promised[1])",
    ),
    (
        "a leader counts on its lease for less than acceptors keep to it",
        "lease/times",
        "HELD = 0.9",
        "HELD = 1.2",
    ),
    (
        "a lease is counted from before it was asked for",
        "lease/elector",
        "self._held_until = attempt.since + self._times.held_s",
        "self._held_until = now + 2 * self._times.held_s",
    ),
    (
        "a majority gives the lease",
        "lease/elector",
        "if len(attempt.accepted) <= self._hosts // 2:",
        "if len(attempt.accepted) < self._hosts // 2:",
    ),
    (
        "a renewal that is outbid asks with a higher number",
        "lease/elector",
        "if self.leads(now) and ask.step is LeaseStep.PROPOSE and answer.highest > ask.number:",
        "if False:",
    ),
    (
        "an answer counts for the question that it was given to",
        "lease/elector",
        "if attempt is None or ask is not attempt.ask:",
        "if attempt is None or ask != attempt.ask:",
    ),
    (
        "a term is above all that were seen",
        "lease/elector",
        "self.acceptor.learn(answer.highest)",
        "pass",
    ),
    (
        "a leader below the term of a node gives up",
        "lease/elector",
        "if self.leads(now) and term > self.term else None",
        "if False else None",
    ),
    (
        "what is told of a round is kept",
        "lease/acceptor",
        "self.formed = max(self.formed, (ask.round_term, ask.round))",
        "pass",
    ),
    (
        "other hosts know of a round before it begins",
        "group/formation",
        "self._state.newest = self._state.term, self._state.round",
        "pass",
    ),
    (
        "other hosts hear of the next round when one is stopped",
        "group/rounds",
        "self._state.newest = self._state.settings.term, self._state.round + 1",
        "pass",
    ),
    (
        "a round that was taken over stays that of its leader",
        "group/rounds",
        "state.newest = state.term, state.round",
        "state.newest = state.settings.term, state.round",
    ),
    (
        "no round is of a later leader than the one that takes it over",
        "group/rounds",
        "state.term = min(taken.term, state.settings.term)",
        "state.term = taken.term",
    ),
    (
        "only the first leader of a job does not wait",
        "lease/elector",
        "return term == self.term and len(hosts) == self._hosts",
        "return True",
    ),
    (
        "the first leader of a job does not wait",
        "lease/elector",
        "return term == self.term and len(hosts) == self._hosts",
        "return False",
    ),
    (
        "a lease is given back in order",
        "lease/elector",
        "held = self._ask(LeaseStep.RELEASE, self._last_number)",
        "held = self._ask(LeaseStep.PROPOSE, self._last_number)",
    ),
    (
        "a lease that is given back too late, after the next one, runs on",
        "lease/acceptor",
        "is_last = is_own and ask.number >= self._number",
        "is_last = is_own",
    ),
    (
        "votes that did not suffice are given back",
        "lease/elector",
        "is_over = len(attempt.refused) > self._hosts // 2",
        "is_over = False",
    ),
    (
        "a renewal that fails gives nothing back",
        "lease/elector",
        "attempt.ask.step is not LeaseStep.PROPOSE or self.leads(now):",
        "attempt.ask.step is not LeaseStep.PROPOSE:",
    ),
    (
        "the end of the job is told also without a lease",
        "lease/elector",
        "        elif not self.leads(now):\n            return None\n        return self._release",
        "        if not self.leads(now):\n            return None\n        return self._release",
    ),
    (
        "a lease that is over leaves no vote behind",
        "lease/elector",
        "return self._release(self._ask(LeaseStep.RELEASE, self._last_number), now)",
        "self._lose(now)",
    ),
    (
        "a renewal that its release has overtaken is refused",
        "lease/acceptor",
        " or ask.number <= self._given_back:",
        ":",
    ),
    (
        "the votes that were asked for last are given back",
        "lease/elector",
        "return self._number if self._attempt is None else self._attempt.ask.number",
        "return self._number",
    ),
    (
        "a candidate begins with an answer from itself",
        "lease/elector",
        "if not own.accepted:",
        "if False:",
    ),
    (
        "an older round than the newest is not taken over as it is",
        "group/takeover",
        "if self._newest < self._known:",
        "if False:",
    ),
    (
        "a round of a later leader is newer, whatever its number",
        "group/takeover",
        "return claim.term, claim.round",
        "return 0, claim.round",
    ),
    (
        "a new leader waits before it starts workers",
        "group/lobby",
        "return max(self.not_before, self._state.starts_from)",
        "return self.not_before",
    ),
    (
        "a leader that has found the round whole need not wait",
        "group/rounds",
        "            state.starts_from = -math.inf  # its workers are all that there are\n",
        "            pass\n",
    ),
    (
        "the wait is as long as workers may outlive their leader",
        "lease/times",
        "return self.renew_s + self.silence_s + self.fence_s + KILL_S",
        "return self.fence_s",
    ),
    (
        "workers without a leader are killed",
        "lease/fence",
        "return self._since is not None and now - self._since >= self._fence_s",
        "return False",
    ),
    (
        "a leader that is gone for a moment costs no worker",
        "lease/fence",
        "return self._since is not None and now - self._since >= self._fence_s",
        "return self._since is not None",
    ),
    (
        "a host that was frozen counts from before",
        "lease/fence",
        "self._since = self._awake  # the silence may have begun long before",
        "self._since = now",
    ),
    (
        "a stream that broke in a freeze counts from before",
        "lease/fence",
        "self._since = awake if now - thawed <= self._silence_s else now",
        "self._since = now",
    ),
    (
        "a node never follows a lower term",
        "lease/search",
        "if term < self.term:",
        "if False:",
    ),
    (
        "a node tries all listed hosts",
        "lease/search",
        "self.target, self._led = (self.target + 1) % self._hosts, 0",
        "self._led = 0",
    ),
    (
        "a host that does not lead as it was said to is not gone back to",
        "lease/search",
        "self.failed()  # also where",
        "self._next()  # also where",
    ),
    (
        "a leader that cannot be reached is not asked for again at once",
        "lease/search",
        "if is_known and (host, term) != self._failed:",
        "if is_known:",
    ),
)
"""What is broken, in which module, which text becomes which."""

LEASE_HISTORIES = 600

SIMULATE_LEASE = """
import sys
from ft_run.tests.harness.lease.simulation import live_through
for seed in range(int(sys.argv[1])):
    try:
        live_through(seed)
    except Exception as error:
        sys.exit(f"{str(error).splitlines()[0] or type(error).__name__}")
"""
