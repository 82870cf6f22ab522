"""The flags of the failure policy, what their values mean, and the command ``ft-run policy``."""

from collections.abc import Callable
from typing import Any, Final

from ... import defaults
from ...rendezvous.policy.rules import BadRule, Rule
from .command_line import CommandLine, Flag, HelpText
from .values import BadValue, one_of, seconds, seconds_above_zero, string, whole

_FAILURE = "Failure"


def rule(text: str) -> Rule:
    """Return one rule, ``MATCH=ACTION``."""
    try:
        return Rule.parse(text)
    except BadRule as bad:
        raise BadValue(bad.right, bad.why) from None


def backoff(text: str) -> tuple[float, float]:
    """Return the first and the longest delay of ``FIRST:MAX``, in seconds."""
    right = "FIRST:MAX with FIRST <= MAX and MAX above 0, such as 0s:60s"
    first, colon, longest = text.partition(":")
    try:
        found = seconds(first), seconds(longest)
    except BadValue:
        raise BadValue(right) from None
    if not colon or found[0] > found[1] or not found[1]:
        raise BadValue(right)
    return found


def limit(text: str) -> int:
    """Return how often something may happen; 0 for ``never``, that it may always."""
    if text.strip().lower() == "never":
        return 0
    try:
        return whole(1)(text)
    except BadValue:
        raise BadValue("a whole number, 1 or more, or never") from None


READERS: Final[dict[str, Callable[[str], Any]]] = {
    "restart-window": seconds_above_zero,
    "restart-backoff": backoff,
    "max-node-failures": limit,
    "max-no-progress": limit,
    "success-policy": one_of("all", "rank0"),
}


def policy_flags(group: str = _FAILURE) -> list[Flag]:
    """Return the flags of the failure policy, for ``ft-run`` and ``ft-run policy``."""
    return [*_rule_flags(group), *_limit_flags(group)]


def _rule_flags(group: str) -> list[Flag]:
    return [
        Flag(
            "--on-failure",
            group=group,
            metavar="MATCH=ACTION",
            read=rule,
            multiple=True,
            ours=True,
            help="How a failure is answered; may be repeated, the first that matches decides."
            " MATCH: exit:N, exit:A-B, signal:NAME, oom, error:REGEX, hang, node-lost, preempted."
            " ACTION: restart (default), restart-free (not counted), fail (the job ends with 3),"
            " replace-node. Such as exit:3=fail or oom=replace-node.",
        ),
        Flag(
            "--failure-policy",
            group=group,
            metavar="FILE",
            read=string,
            ours=True,
            help="A TOML file with rules ([[rule]] match, action) and the options below.",
        ),
    ]


def _limit_flags(group: str) -> list[Flag]:
    return [
        Flag(
            "--restart-window",
            group=group,
            metavar="TIME",
            read=READERS["restart-window"],
            ours=True,
            help="Count only the restarts of the last TIME against --max-restarts, such as 24h;"
            " default: all.",
        ),
        Flag(
            "--restart-backoff",
            group=group,
            metavar="FIRST:MAX",
            read=READERS["restart-backoff"],
            ours=True,
            help="Space restarts: the first after FIRST, then doubling up to MAX, such as 0s:60s;"
            " default: none, and 0s:60s for those that are not counted.",
        ),
        Flag(
            "--max-node-failures",
            group=group,
            metavar="N|never",
            read=READERS["max-node-failures"],
            ours=True,
            help="Exclude a node that was the root cause N times, where a spare can stand in;"
            f" default {defaults.MAX_NODE_FAILURES}.",
        ),
        Flag(
            "--max-no-progress",
            group=group,
            metavar="N|never",
            read=READERS["max-no-progress"],
            ours=True,
            help="With --hang-timeout or --watch-workers: end the job with 3 after N restarts"
            " running without a step beyond the furthest one so far; default"
            f" {defaults.MAX_NO_PROGRESS}.",
        ),
        Flag(
            "--success-policy",
            group=group,
            metavar="all|rank0",
            read=READERS["success-policy"],
            ours=True,
            help="The job has succeeded when all workers have (default), or when rank 0 has.",
        ),
    ]


def propagate_flag() -> Flag:
    """Return the flag for the exit status of a job that failed."""
    return Flag(
        "--propagate-exit-code",
        group=_FAILURE,
        ours=True,
        help="Where the restarts are spent, exit with the status of the root cause's worker"
        " (128+n for signal n) instead of 1.",
    )


def policy_command() -> CommandLine:
    """Return the flags of ``ft-run policy``."""
    flags = [
        Flag(
            "--explain",
            group="Options",
            metavar="FAILURE",
            read=string,
            help="What has failed: exit:N, signal:NAME, oom, hang, node-lost, preempted, error:TEXT"
            " (last), such as 'exit:137 oom'.",
        ),
        Flag(
            "--after",
            group="Options",
            metavar="TIME",
            read=seconds,
            help="How long the round had run, such as 2s; default: not known.",
        ),
        Flag("--again", group="Options", help="The round before failed in the same way."),
        Flag("--json", group="Options", help="Print JSON instead of text."),
        *policy_flags("Options"),
    ]
    before = """\
Usage: ft-run policy --explain FAILURE [OPTIONS]

Show which rule would decide about a failure and why, and which rules are passed over.
Nothing is started. The rules are given as to ft-run.

Example:
  ft-run policy --explain 'exit:137 oom' --on-failure oom=replace-node
"""
    after = (
        "Every option can be set by PET_<NAME>, such as PET_ON_FAILURE='exit:3=fail;oom=fail'.\n"
    )
    return CommandLine("ft-run policy", flags, HelpText(before, after))
