"""The rules of the failure policy: which rule responds to a failure, and how.

Rules are ``MATCH=ACTION``; the first match decides, the user's rules before the defaults
(docs/reference/failure-policy.md). ``decide`` returns the rule, the reason, and the skipped rules.
"""

import enum
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..protocol.carried import Carried, Proposal, merged
from ..protocol.failure import Failure, FailureKind
from .matches import (
    BadRule,
    Look,
    Match,
    look_for_corrupt,
    look_for_slip,
    look_for_unequal,
    look_for_world_size,
    parse_match,
    same_slip,
)

SLIP_S = 10.0
"""A usage or import error this soon after the start, in two consecutive rounds, ends the job."""


class Action(enum.Enum):
    """The response to a failure."""

    RESTART = "restart"
    """A new round, counted against ``--max-restarts``."""
    RESTART_FREE = "restart-free"
    """A new round, not counted."""
    FAIL = "fail"
    """The job ends immediately."""
    REPLACE_NODE = "replace-node"
    """The node of the root cause is excluded; a new round with another node, counted."""
    SHRINK = "shrink"
    """A new round with the values that the failure proposes, not counted."""

    @property
    def is_counted(self) -> bool:
        """Whether it counts against ``--max-restarts``."""
        return self in (Action.RESTART, Action.REPLACE_NODE)


class Rule(Struct, frozen=True):
    """A user's rule: the action responds to a failure that matches."""

    match: Match
    action: Action

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Parse ``MATCH=ACTION``, e.g. ``exit:64-79=fail``. A regex may contain ``=``.

        Raises:
            BadRule: If it is not a rule.
        """
        match, equals, action = text.strip().rpartition("=")
        actions = [known.value for known in Action]
        if not equals or not match:
            raise BadRule("not MATCH=ACTION", "MATCH=ACTION, e.g. exit:3=fail or oom=replace-node")
        if action.strip() not in actions:
            known = f"{', '.join(actions[:-1])} or {actions[-1]}"
            raise BadRule(f"unknown action {action.strip()[:80]!r}", known)
        rule = cls(parse_match(match.strip()), Action(action.strip()))
        if rule.action is Action.SHRINK and rule.match.text != "device-oom":
            raise BadRule(f"shrink does not answer {match.strip()[:80]!r}", "device-oom=shrink")
        return rule

    @property
    def text(self) -> str:
        """The rule as it is written."""
        return f"{self.match.text}={self.action.value}"


class Context(Struct, frozen=True):
    """Information in addition to the failure itself."""

    seconds_after_start: float | None = None
    """Seconds from the start of the round to its failure; None if unknown."""
    previous: Failure | None = None
    """Root cause of the previous round, if it too was a usage error soon after the start."""
    carried: Carried = ()
    """Values of the job."""
    was_corrupt: bool = False
    """Whether state was corrupted before on the node of the root cause."""

    def is_slip(self, failure: Failure) -> bool:
        """Return whether the failure is a usage or import error soon after the start."""
        after = self.seconds_after_start
        return after is not None and after < SLIP_S and look_for_slip(failure).matches


class PassedOver(Struct, frozen=True):
    """A rule that did not match."""

    rule: str
    reason: str


class Decision(Struct, frozen=True):
    """The response to a failure."""

    action: Action
    rule: str
    """The rule's text; for a default its kind, e.g. ``preempted=restart-free``."""
    reason: str
    """Why it matches, as text."""
    is_default: bool = False
    passed_over: tuple[PassedOver, ...] = ()
    adopts: Carried = ()
    """Values of the next round that ``shrink`` changes."""
    note: str = ""
    """Effect of ``shrink``, or why it does not apply; empty if there is no such rule."""

    def words(self) -> str:
        """Return the rule as short text, for an event line."""
        rule = f"default rule {self.rule}" if self.is_default else f"rule {self.rule}"
        return f"{rule}; {self.note}" if self.note else rule


DEFAULT_SLIP = "repeated usage or import error=fail"
DEFAULT_UNEQUAL = "unequal state=fail"
DEFAULT_WORLD_SIZE = "state of another number of ranks=fail"
DEFAULT_CORRUPT = "corrupt twice on one node=fail"
DEFAULT_PREEMPTED = "preempted=restart-free"
DEFAULT_REST = "everything else=restart"
_REPEATED_BY_RESTARTS = {
    DEFAULT_UNEQUAL: look_for_unequal,
    DEFAULT_WORLD_SIZE: look_for_world_size,
}


def decide(rules: Sequence[Rule], failure: Failure, context: Context) -> Decision:
    """Return the response to a failure, by the first rule that matches.

    Args:
        rules: the user's rules, in their order.
        failure: root cause of the end of a round.
        context: additional information about it.
    """
    passed_over: list[PassedOver] = []
    note = ""
    for rule in rules:
        look = rule.match.look(failure)
        if look.matches and rule.action is Action.SHRINK:
            action, why = _shrinking(failure.proposal, context.carried)
            if action is not None:
                return Decision(
                    action,
                    rule.text,
                    look.words,
                    passed_over=tuple(passed_over),
                    adopts=failure.proposal.values if failure.proposal is not None else (),
                    note=why,
                )
            look = Look(False, why)
            note = f"{rule.text} does not apply: {why}"
        if look.matches:
            return Decision(
                rule.action, rule.text, look.words, passed_over=tuple(passed_over), note=note
            )
        passed_over.append(PassedOver(rule.text, look.words))
    default = _default(failure, context, passed_over)
    return replace(default, note=note) if note else default


def _shrinking(proposal: Proposal | None, carried: Carried) -> tuple[Action | None, str]:
    """Return the action of ``shrink`` on a failure, and the reason; None if it does not apply."""
    if proposal is None:
        return None, "memory ran out outside the parts of ElasticBatches"
    if merged(carried, proposal.values) != carried:
        return Action.SHRINK, proposal.words
    if proposal.values:
        return None, f"{proposal.words} was proposed before the last change"
    return Action.FAIL if proposal.ends_job else None, proposal.words


def _default(failure: Failure, context: Context, passed_over: list[PassedOver]) -> Decision:
    """Return the response of the default rules, if no rule of the user applies."""
    is_repeated, words = _repeated_slip(failure, context)
    if is_repeated:
        return Decision(Action.FAIL, DEFAULT_SLIP, words, True, tuple(passed_over))
    passed_over.append(PassedOver(DEFAULT_SLIP, words))
    for rule, look_for in _REPEATED_BY_RESTARTS.items():
        look = look_for(failure)
        if look.matches:
            return Decision(Action.FAIL, rule, look.words, True, tuple(passed_over))
        passed_over.append(PassedOver(rule, look.words))
    corrupt = look_for_corrupt(failure)
    if corrupt.matches and context.was_corrupt:
        return Decision(Action.FAIL, DEFAULT_CORRUPT, corrupt.words, True, tuple(passed_over))
    words = "the first time on this node" if corrupt.matches else corrupt.words
    passed_over.append(PassedOver(DEFAULT_CORRUPT, words))
    if failure.kind is FailureKind.PREEMPTED:
        words = "the node is being preempted"
        return Decision(Action.RESTART_FREE, DEFAULT_PREEMPTED, words, True, tuple(passed_over))
    passed_over.append(PassedOver(DEFAULT_PREEMPTED, "no node was preempted"))
    words = "no other rule matches"
    return Decision(Action.RESTART, DEFAULT_REST, words, True, tuple(passed_over))


def _repeated_slip(failure: Failure, context: Context) -> tuple[bool, str]:
    look = look_for_slip(failure)
    if not look.matches:
        return False, look.words
    if not context.is_slip(failure):
        return False, f"not within {SLIP_S:g} s of the start"
    if context.previous is None or not same_slip(failure, context.previous):
        return False, "the first failure of this kind"
    return True, (
        f"the same usage or import error within {SLIP_S:g} s of the start in two consecutive rounds"
    )
