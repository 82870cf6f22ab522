"""``device-oom=shrink`` as a bystander sees it: parts are halved for a reason, and never grow."""

from ft_run.rendezvous.protocol.failure import Failure
from ft_run.rendezvous.protocol.messages import Assignment, PolicySpec

RULE = "device-oom=shrink"


class ShrinkError(AssertionError):
    """A ``micro_batch`` does not follow from what was seen."""


class ShrinkWatch:
    """The ``micro_batch`` of one master's rounds, and what it was told."""

    def __init__(self, policy: PolicySpec) -> None:
        self._has_rule = RULE in policy.rules
        self.new_master()

    def new_master(self) -> None:
        """Another master: it knows what nodes claim."""
        self._given = 0
        """What it must know of; 0: nothing."""
        self._rumoured: set[int] = set()
        """What it may know of."""

    def hear(self, micro_batch: int, *, is_admitted: bool) -> None:
        """A node claims that its round had this value; 0: none."""
        self._rumoured.add(micro_batch)
        if micro_batch and is_admitted:
            self._given = min(self._given or micro_batch, micro_batch)

    def action_for(self, cause: Failure, given: int) -> str:
        """Return ``shrink``, ``fail``, or nothing where other rules decide."""
        if not self._has_rule or not cause.micro_batch or 0 < given < cause.micro_batch:
            return ""
        return "shrink" if cause.micro_batch > 1 else "fail"

    def ends(self, cause: Failure) -> bool:
        """Return whether the rule may end the job after a failure."""
        return any(self.action_for(cause, given) == "fail" for given in self._before())

    def formed(self, assignment: Assignment) -> bool:
        """A round was formed; return whether this rule led to it."""
        now = assignment.past.micro_batch if assignment.past is not None else 0
        cause, before = assignment.cause, self._before()
        actions = {self.action_for(cause, given) for given in before} if cause is not None else {""}
        shrinks = assignment.decision.startswith(f"rule {RULE}")
        if ("shrink" if shrinks else "") not in actions:
            raise ShrinkError(f"{assignment.decision or 'a default rule'}, but not by {actions}")
        if shrinks:
            assert cause is not None
            before = {cause.micro_batch // 2}
            if not assignment.is_free:
                raise ShrinkError("smaller parts cost a restart")
        if now not in before:
            raise ShrinkError(f"micro_batch {now}, but not of {before}")
        self._given, self._rumoured = now, set()
        return shrinks

    def _before(self) -> set[int]:
        """Return what the last round may have had: also what a node claims that may not teach."""
        given = self._given
        return {given} | {one for one in self._rumoured if one and (not given or one < given)}
