"""``device-oom=shrink`` as a bystander sees it: a failure proposes values, and the newest apply."""

from ft_run.rendezvous.protocol.carried import Carried, CarriedValue
from ft_run.rendezvous.protocol.failure import Failure
from ft_run.rendezvous.protocol.messages import Assignment, PolicySpec

RULE = "device-oom=shrink"
NAME = "micro_batch"
_NONE = CarriedValue(NAME, 0)


class ShrinkError(AssertionError):
    """A value does not follow from what was seen."""


class ShrinkWatch:
    """The ``micro_batch`` of one master's rounds, and what it was told."""

    def __init__(self, policy: PolicySpec) -> None:
        self._has_rule = RULE in policy.rules
        self.new_master()

    def new_master(self) -> None:
        """Another master: it knows what nodes claim."""
        self._given = _NONE
        """What it must know of."""
        self._rumoured: set[CarriedValue] = set()
        """What it may know of."""

    def hear(self, carried: Carried, *, is_admitted: bool) -> None:
        """A node claims that its round had these values."""
        for value in carried:
            self._rumoured.add(value)
            if is_admitted and value.change > self._given.change:
                self._given = value

    def action_for(self, cause: Failure, given: CarriedValue) -> str:
        """Return ``shrink``, ``fail``, or nothing where other rules decide."""
        proposal = cause.proposal
        if not self._has_rule or proposal is None:
            return ""
        if any(value.change > given.change for value in proposal.values):
            return "shrink"
        return "fail" if proposal.ends_job else ""

    def ends(self, cause: Failure) -> bool:
        """Return whether the rule may end the job after a failure."""
        return any(self.action_for(cause, given) == "fail" for given in self._before())

    def formed(self, assignment: Assignment) -> bool:
        """A round was formed; return whether this rule led to it."""
        now = assignment.carried[0] if assignment.carried else _NONE
        cause, before = assignment.cause, self._before()
        actions = {self.action_for(cause, given) for given in before} if cause is not None else {""}
        shrinks = assignment.decision.startswith(f"rule {RULE}")
        if ("shrink" if shrinks else "") not in actions:
            raise ShrinkError(f"{assignment.decision or 'a default rule'}, but not by {actions}")
        if shrinks:
            assert cause is not None
            assert cause.proposal is not None
            before = set(cause.proposal.values)
            if not assignment.is_free:
                raise ShrinkError("smaller parts cost a restart")
            if any(now.value > now.replaces // 2 for now in before):
                raise ShrinkError(f"parts of {before} are not halved")
        if now not in before:
            raise ShrinkError(f"{now}, but not of {before}")
        self._given, self._rumoured = now, set()
        return shrinks

    def _before(self) -> set[CarriedValue]:
        """Return what the last round may have had: also what a node claims that may not teach."""
        given = self._given
        return {given} | {one for one in self._rumoured if one.change > given.change}
