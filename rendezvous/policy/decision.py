"""The response to the end of a round: the policy's decision, budget and exclusion."""

from msgspec import Struct

from ..protocol.carried import Carried, merged
from ..protocol.claim import Past
from ..protocol.failure import Failure, FailureKind, is_collateral
from ..protocol.messages import JobSpec, Outcome, PolicySpec
from .blame import Ledger
from .budget import RestartBudget
from .matches import look_for_corrupt
from .no_progress import ProgressRecord
from .postmortem import Postmortem
from .rules import SLIP_S, Action, Context, Decision, Rule, decide

_DEFAULTS = PolicySpec()

_TRIALS_MAX = 12
"""Failed trials of ``--auto-tune on`` in a job that are not counted; the script causes more."""


class RoundDecision(Struct, frozen=True):
    """The response to the end of a round. With all fields at their defaults: a regroup."""

    outcome: Outcome | None = None
    """Outcome of the job, if it ends."""
    is_counted: bool = False
    """Whether the next round counts as a restart."""
    words: str = ""
    """Decision of the policy; empty for the default rule."""
    excluded: str | None = None
    delay_s: float = 0.0
    """Delay of the next round, in seconds."""


class Aftermath:
    """State that is kept between rounds to respond to the next failure."""

    def __init__(self) -> None:
        self.budget = RestartBudget()
        self.ledger = Ledger()
        self.progress = ProgressRecord()
        self.carried: Carried = ()
        """Values of the job that outlive a round."""
        self._failed_trials = 0
        self._slip: Failure | None = None
        self._corrupt: set[str] = set()
        """Identities of nodes on which state was corrupted."""
        self._rules: tuple[Rule, ...] | None = None

    def answer(
        self,
        job: JobSpec,
        postmortem: Postmortem,
        *,
        restarts: int,
        ran_s: float | None,
        suspect: str | None,
        has_stand_in: bool,
        nodes: int,
        now: float,
    ) -> RoundDecision:
        """Return the response to the end of a round.

        Args:
            job: has the policy and the budget.
            postmortem: concluded; a departure that the policy blames becomes its cause.
            restarts: restarts counted since the start of the job.
            ran_s: seconds from the start of the round to its stop; None if unknown.
            suspect: identity of the root cause's node; None if unknown.
            has_stand_in: whether a world of the same size can be formed without that node.
            nodes: number of nodes of the round.
            now: the group's time in seconds.
        """
        policy = job.policy or _DEFAULTS
        if postmortem.stuck is not None:
            return RoundDecision(outcome=Outcome.WORKERS_FAILED)
        failure = postmortem.cause or postmortem.preempted
        decision = self._decision(policy, postmortem, failure, ran_s, suspect)
        shrinks = decision is not None and decision.action is Action.SHRINK
        trial = failure.trial if failure is not None else ""
        is_trial = bool(trial) and self._failed_trials < _TRIALS_MAX
        reports = postmortem.progress.values()
        has_failed = decision is not None and not shrinks and not is_trial
        self.progress.round_over(reports, is_complete=len(reports) >= nodes, has_failed=has_failed)
        if decision is None:
            return RoundDecision()
        if is_trial:
            self._failed_trials += 1
            self._slip = None
            return RoundDecision(words=f"auto-tune was trying {trial}")
        if shrinks:
            self.carry(decision.adopts)
            return RoundDecision(words=decision.words())
        is_news = not decision.is_default or decision.action is Action.FAIL or decision.note
        words = decision.words() if is_news else ""
        if (end := self._end(job, policy, decision, words, restarts, now)) is not None:
            return end
        is_counted, excluded = decision.action.is_counted, None
        if suspect is not None and failure is not None:
            excluded, why = self._exclusion(
                policy, decision, failure, suspect, has_stand_in=has_stand_in, now=now
            )
            words = "; ".join(part for part in (words, why) if part)
        if is_counted:
            self.budget.count(policy, now)
        return RoundDecision(
            is_counted=is_counted,
            words=words,
            excluded=excluded,
            delay_s=self.budget.delay_s(policy, ran_s, is_free=not is_counted),
        )

    def past(self, policy: PolicySpec, now: float) -> Past | None:
        """Return the part that a later master needs, which the nodes of a new round keep."""
        ages = self.budget.ages_s(policy, now)
        excluded = self.ledger.excluded
        failures = self.ledger.failures(policy.max_node_failures, policy.restart_window_s, now)
        progress = self.progress.past if policy.max_no_progress else None
        if not (ages or excluded or failures or progress or self.carried):
            return None
        return Past(ages, excluded, failures=failures, progress=progress, carried=self.carried)

    def carry(self, values: Carried) -> None:
        """Adopt the values that are newer."""
        self.carried = merged(self.carried, values)

    def _decision(
        self,
        policy: PolicySpec,
        postmortem: Postmortem,
        failure: Failure | None,
        ran_s: float | None,
        suspect: str | None,
    ) -> Decision | None:
        """Return the policy's decision on a failure; None for a regroup, which it does not decide.

        A departure that counts as a restart becomes the cause of the end of the round.
        """
        if failure is None:
            if postmortem.counted:
                return Decision(Action.RESTART, "", "unknown cause", True)
            if ran_s is not None and ran_s >= SLIP_S:
                self._slip = None  # a round that ran separates earlier and later failures
            return None
        was_corrupt = suspect in self._corrupt
        context = Context(ran_s, self._slip, self.carried, was_corrupt)
        decision = decide(self._rules_of(policy), failure, context)
        if suspect is not None and look_for_corrupt(failure).matches:
            self._corrupt.add(suspect)
        self._slip = failure if context.is_slip(failure) else None
        if failure is postmortem.preempted:
            if decision.action is Action.RESTART_FREE:
                return None
            postmortem.blame_departure()
        return decision

    def _end(
        self,
        job: JobSpec,
        policy: PolicySpec,
        decision: Decision,
        words: str,
        restarts: int,
        now: float,
    ) -> RoundDecision | None:
        """Return the end of the job: by a rule, or without progress or budget; None to continue."""
        if decision.action is Action.FAIL:
            return RoundDecision(outcome=Outcome.POLICY_ENDED, words=words)
        if exhausted := self.progress.exhausted(policy.max_no_progress):
            return RoundDecision(outcome=Outcome.POLICY_ENDED, words=exhausted)
        is_counted = decision.action.is_counted
        if is_counted and self.budget.used(restarts, policy, now) >= job.max_restarts:
            return RoundDecision(outcome=Outcome.WORKERS_FAILED, words=words)
        return None

    def _exclusion(
        self,
        policy: PolicySpec,
        decision: Decision,
        failure: Failure,
        suspect: str,
        *,
        has_stand_in: bool,
        now: float,
    ) -> tuple[str | None, str]:
        """Blame the node of the root cause; return it and the reason if it is excluded."""
        if decision.action is Action.REPLACE_NODE:
            self.ledger.exclude(suspect, f"{failure.summary()} ({decision.words()})")
            return suspect, f"node {suspect} is excluded"
        if failure.kind is FailureKind.PREEMPTED or is_collateral(failure):
            return None, ""  # a node that only lost its peer is not blamed
        times = self.ledger.blame(suspect, policy.restart_window_s, now)
        if not policy.max_node_failures or times < policy.max_node_failures or not has_stand_in:
            return None, ""
        limit = f"--max-node-failures {policy.max_node_failures}"
        self.ledger.exclude(
            suspect,
            f"it was the root cause of {times} restarts, most recently: {failure.summary()}",
        )
        return suspect, f"node {suspect} is excluded after {times} failures ({limit})"

    def _rules_of(self, policy: PolicySpec) -> tuple[Rule, ...]:
        if self._rules is None:
            self._rules = tuple(Rule.parse(text) for text in policy.rules)
        return self._rules
