"""Trials of ``--auto-tune on`` as a bystander sees them: ordered by rank 0, for one round, free."""

from ft_run.rendezvous.protocol.claim import Claim, Past
from ft_run.rendezvous.protocol.failure import FailureKind
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.rendezvous.protocol.tuned import Retune, TunedValue, in_effect

_DECISION = "auto-tune was trying "
_TRIALS_MAX = 12
_Values = tuple[tuple[TunedValue, ...], TunedValue | None]


class TrialError(AssertionError):
    """The values of a round do not follow from what was seen."""


class TrialWatch:
    """The values of one master's rounds, and what rank 0 has ordered."""

    def __init__(self) -> None:
        self.new_master()

    def new_master(self) -> None:
        """Another master: it knows what nodes claim."""
        self._present: set[_Values] = {((), None)}
        """What the round may have, as nodes claim, or as rank 0 has accepted."""
        self._is_certain = False
        self._ordered: set[_Values] = set()
        self._failed = 0

    def hear(self, claim: Claim) -> None:
        """A node claims that its round had these values."""
        past = claim.past or Past()
        self._present.add((past.values, past.trial))

    def ordered(self, order: Retune) -> None:
        """Rank 0 of the round orders values."""
        found = order.values, order.trial
        if any(in_effect(*one) == in_effect(*found) for one in self._present):
            self._present.add(found)
        self._ordered.add(found)

    def formed(self, assignment: Assignment) -> bool:
        """A round was formed; return whether a trial was at fault for the end of the one before."""
        past, cause = assignment.past or Past(), assignment.cause
        kept = {(values, None) for values, _ in self._present}
        allowed = kept if cause is not None else kept | self._ordered
        now = past.values, past.trial
        if now not in allowed:
            raise TrialError(f"values {now}, but not of {allowed}")
        is_free = assignment.decision.startswith(_DECISION)
        tried = {str(trial) for _, trial in self._present if trial is not None}
        if is_free and assignment.decision.removeprefix(_DECISION) not in tried:
            raise TrialError(f"{assignment.decision!r}, but {tried or 'nothing'} was tried")
        was_trial = self._is_certain and all(trial is not None for _, trial in self._present)
        of_node = cause is not None and cause.kind in (FailureKind.NODE_LOST, FailureKind.PREEMPTED)
        is_at_fault = was_trial and cause is not None and not of_node
        if is_at_fault and not is_free and self._failed < _TRIALS_MAX:
            raise TrialError(f"a trial failed and the restart was counted: {assignment.decision!r}")
        if is_free != assignment.is_free and is_free:
            raise TrialError("a failed trial cost a restart")
        self._failed += is_free
        self._present, self._is_certain, self._ordered = {now}, True, set()
        return is_free
