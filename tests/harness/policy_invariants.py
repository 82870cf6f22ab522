"""The failure policy as a bystander sees it: what was decided must follow from what was seen.

It looks at the assignments that nodes get, at the verdict, and at what ``Status`` shows of the
group; it works out for itself what the job's rules say.
"""

import math
from collections import defaultdict

from ft_run.rendezvous.group.group import Group, GroupPhase
from ft_run.rendezvous.protocol.claim import Claim, Past
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.messages import Assignment, JobSpec, Outcome, PolicySpec, Verdict
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.tests.harness.shrink_invariants import ShrinkWatch

_SLIP_CODE, _SLIP_S = 2, 10.0
_FREE_DELAYS_S = (0.0, 60.0)
_ROUNDED_S = 2.0
"""Ages travel as whole seconds, and so does the time since."""


class PolicyError(AssertionError):
    """A decision does not follow from the policy."""


def action_for(policy: PolicySpec, failure: Failure) -> str:
    """Return what the rules say, but for the rule about slips."""
    name = f"exit:{failure.exit_code}" if failure.kind is FailureKind.WORKER else ""
    name = {
        FailureKind.NODE_LOST: "node-lost",
        FailureKind.PREEMPTED: "preempted",
        FailureKind.HANG: "hang",
    }.get(failure.kind, name)
    for rule in policy.rules:
        match, _, action = rule.partition("=")
        if match == name:
            return action
    return "restart-free" if failure.kind is FailureKind.PREEMPTED else "restart"


class PolicyWatch:
    """What one master has decided, and what it knew."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._policy = job.policy or PolicySpec()
        self._shrinking = ShrinkWatch(self._policy)
        self.new_master()

    def new_master(self) -> None:
        """Another master: what the one before has seen is known from claims only."""
        self._shrinking.new_master()
        self.excluded: set[str] = set()
        self._learned: set[str] = set()
        """Excluded nodes, as nodes said that were admitted."""
        self._rumoured: set[str] = set()
        """The same, also as nodes said that were not, or went with the same message."""
        self._blamed: defaultdict[str, list[float]] = defaultdict(list)
        self._told_blames: defaultdict[str, list[float]] = defaultdict(list)
        self._newest: tuple[int, Past, float] | None = (-1, Past(), 0.0)
        """The highest round that an admitted node told of before this master had formed one: its
        number, the past of the job, and when it was told."""
        self._times: list[float] = []
        self._total = 0
        self._told: dict[int, list[float]] = {}
        self._members: dict[int, str] = {}
        self._formed_at: float | None = None
        self._ran_s: float | None = None
        self._over_at = 0.0
        self._used_before = 0
        self._was_counted = False
        self._was_slip: bool | None = False
        """Whether the root cause before was a slip; None where a regroup may lie between."""
        self._in_succession = 0

    # --- what is seen ------------------------------------------------------------------------

    def hear(self, claim: Claim, now: float, *, is_admitted: bool) -> None:
        """A node tells of the past; one that is not admitted at once may be so later."""
        past = claim.past or Past()
        self._shrinking.hear(past.carried, is_admitted=is_admitted)
        times = [now - age - past.since_s for age in past.restart_ages_s]
        self._told.setdefault(claim.restarts, times)
        self._rumoured.update(past.excluded)
        for node in past.failures:
            told = [now - age - past.since_s for age in node.ages_s]
            self._told_blames[node.node_id] = max(self._told_blames[node.node_id], told, key=len)
        if is_admitted:
            self._learned.update(past.excluded)
            if self._newest is not None and claim.round > self._newest[0]:
                self._newest = claim.round, past, now

    def hear_offer(self, offer: Offer) -> None:
        """A node offers what it knows."""
        self._shrinking.hear(offer.carried, is_admitted=False)

    def look(self, group: Group) -> None:
        """See what the group counts; a count that no failure explains was learned."""
        self._learn(group.restarts)

    def _learn(self, restarts: int) -> None:
        if restarts > self._total:
            self._total = restarts
            self._times = list(self._told.get(restarts, ()))

    def adopted(self) -> None:
        """The present round was formed by an earlier master."""
        self._formed_at, self._members = None, {}

    def broken(self, now: float) -> None:
        """The present round is being stopped."""
        self._ran_s = None if self._formed_at is None else now - self._formed_at

    def over(self, group: Group, restarts_before: int, now: float) -> None:
        """All workers of the round are dead; the group has answered."""
        self._over_at = now
        self._learn(restarts_before)
        self._used_before = self._in_window(now, -_ROUNDED_S)
        self._was_counted = group.restarts > restarts_before
        if self._was_counted:
            self._total = group.restarts
            self._times.append(now)

    def _in_window(self, now: float, more_s: float = 0.0) -> int:
        window = self._policy.restart_window_s and self._policy.restart_window_s + more_s
        return sum(now - time < window for time in self._times) if window else self._total

    # --- what follows ------------------------------------------------------------------------

    def condemned(self, node_id: str) -> None:
        """The checks have ruled a node out."""
        self.excluded.add(node_id)

    def formed(self, assignment: Assignment, members: dict[int, str], now: float) -> bool | None:
        """A round was formed; return whether the restart is counted, None where that is open."""
        cause, policy = assignment.cause, self._policy
        is_counted: bool | None = None
        shrinks = self._shrinking.formed(assignment)
        before = self.excluded | self._learned
        now_excluded = set(assignment.past.excluded) if assignment.past else set()
        justified = before | self._rumoured
        if before - now_excluded:
            raise PolicyError(
                f"{before - now_excluded} excluded, and a later master would not know"
            )
        self._goes_on(assignment.past or Past(), now)
        if shrinks:
            is_counted, self._was_slip = False, False
        elif cause is not None:
            action = action_for(policy, cause)
            is_counted = action != "restart-free"
            self._may_go_on(action, cause)
            if assignment.is_free == is_counted:
                raise PolicyError(f"a round that is free: {assignment.is_free}, by {action}")
            if cause.host in self._members.values() or self._formed_at is None:
                justified |= self._blame(action, cause, cause.host, now_excluded)
        elif self._was_slip:
            self._was_slip = None
        if now_excluded - justified:
            raise PolicyError(f"{now_excluded - justified} excluded for no reason")
        if now_excluded & set(members.values()):
            raise PolicyError(f"{now_excluded & set(members.values())} is excluded and a member")
        if (cause is not None and not shrinks) or self._was_counted:
            self._was_spaced(is_free=assignment.is_free, now=now)
        least, most = (self._in_window(now, more) for more in (-_ROUNDED_S, _ROUNDED_S))
        if policy.restart_window_s and not least <= assignment.restarts_in_window <= most:
            raise PolicyError(
                f"{assignment.restarts_in_window} restarts in the window, not {least} to {most}"
            )
        self.excluded |= now_excluded
        self._members, self._formed_at, self._was_counted = members, now, False
        return is_counted

    def _goes_on(self, past: Past, now: float) -> None:
        """Check that the first round of a master goes on with the counts of the ones before."""
        newest, self._newest = self._newest, None
        if newest is None:
            return
        _, told, told_at = newest
        counts = {node.node_id: len(node.ages_s) for node in past.failures}
        age_max = (self._policy.restart_window_s or math.inf) - told.since_s - _ROUNDED_S
        for node in told.failures:
            count = sum(age + now - told_at < age_max for age in node.ages_s)
            if counts.get(node.node_id, 0) < count and node.node_id not in past.excluded:
                raise PolicyError(f"{node} is known, and a later master would not know")
        if told.progress is not None and (
            past.progress is None or past.progress.furthest < told.progress.furthest
        ):
            raise PolicyError(f"{told.progress} became {past.progress}")

    def _may_go_on(self, action: str, cause: Failure) -> None:
        if action == "fail":
            raise PolicyError(f"a new round after {cause.summary()}, which ends the job")
        if self._is_second_slip(action, cause):
            raise PolicyError(f"a new round after the second slip: {cause.summary()}")
        if action != "restart-free" and self._used_before >= self._job.max_restarts:
            raise PolicyError(f"{self._used_before} restarts were used and one more was made")

    def _is_second_slip(self, action: str, cause: Failure) -> bool | None:
        """Return whether this is the second running; None where that is open."""
        is_slip = (
            cause.kind is FailureKind.WORKER
            and cause.exit_code == _SLIP_CODE
            and self._ran_s is not None
            and self._ran_s < _SLIP_S
        )
        was, self._was_slip = self._was_slip, is_slip
        return was if is_slip and action == "restart" else False

    def _blame(self, action: str, cause: Failure, suspect: str, now_excluded: set[str]) -> set[str]:
        """Return the nodes that the failure of a suspect may exclude."""
        policy = self._policy
        if action == "replace-node":
            # Of a round that was taken over, the root cause may be a node without a name.
            is_named = self._formed_at is not None or cause.node_rank >= 0
            if suspect not in now_excluded and is_named:
                raise PolicyError(f"{suspect} was not excluded by a rule that replaces it")
            return {suspect}
        if cause.kind is FailureKind.PREEMPTED:
            return set()
        self._blamed[suspect].append(self._over_at)
        window = policy.restart_window_s
        all_times = self._told_blames[suspect] + self._blamed[suspect]
        times = [t for t in all_times if not window or self._over_at - t < window + _ROUNDED_S]
        limit = policy.max_node_failures
        return {suspect} if limit and len(times) >= limit else set()

    def _was_spaced(self, *, is_free: bool, now: float) -> None:
        first, longest = self._policy.backoff_first_s, self._policy.backoff_max_s
        if is_free and not longest:
            first, longest = _FREE_DELAYS_S
        if self._ran_s is not None and self._ran_s > 2 * longest:
            self._in_succession = 0
        delays = [first]
        while len(delays) <= self._in_succession:
            delays.append(min(longest, 2 * delays[-1] or 1.0))
        self._in_succession += 1
        if longest and now < self._over_at + delays[-1]:
            raise PolicyError(f"a round after {now - self._over_at} s instead of {delays[-1]} s")

    def ended(
        self, verdict: Verdict, now: float, *, is_stuck: bool, is_exhausted: bool = False
    ) -> None:
        """The job is over; ``is_exhausted``: for want of progress."""
        cause = verdict.cause
        action = action_for(self._policy, cause) if cause is not None else ""
        ends = action == "fail" or (cause is not None and self._is_second_slip(action, cause))
        if cause is not None and self._shrinking.ends(cause):
            ends = None
        if verdict.outcome is Outcome.POLICY_ENDED and ends is False and not is_exhausted:
            raise PolicyError(f"the policy does not end the job: {verdict.sentence}")
        if verdict.outcome is Outcome.WORKERS_FAILED and not is_stuck:
            if ends:
                raise PolicyError(f"the policy ends the job, but: {verdict.sentence}")
            if action == "restart-free":
                raise PolicyError(f"a free restart was not made: {verdict.sentence}")
            if self._in_window(now, _ROUNDED_S) < self._job.max_restarts:
                raise PolicyError(f"restarts are left: {verdict.sentence}")


def is_over(before: GroupPhase, group: Group) -> bool:
    """Return whether a round has ended between two looks at the group."""
    return before is GroupPhase.STOPPING and group.phase is not GroupPhase.STOPPING
