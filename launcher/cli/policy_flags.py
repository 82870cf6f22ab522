"""The flags of the failure policy, what their values mean, and the command ``ft-run policy``."""

from typing import Final

from ... import defaults
from ...rendezvous.policy.rules import BadRule, Rule
from ...rendezvous.protocol.messages import PolicySpec
from ...values import dataclass
from ..flags.flag import Flag, Heading, flags_of
from ..flags.values import BadValue, one_of, seconds, seconds_above_zero, whole
from ..options import FAILURE
from .command_line import CommandLine, HelpText


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


def policy_flags(group: str = FAILURE.name) -> list[Flag]:
    """Return the flags of the failure policy, for ``ft-run`` and ``ft-run policy``."""
    heading = Heading(group)
    return [
        heading(
            "--on-failure MATCH=ACTION",
            "How a failure is answered; may be repeated, the first that matches decides."
            " MATCH: exit:N, exit:A-B, signal:NAME, oom, error:REGEX, hang, node-lost, preempted."
            " ACTION: restart (default), restart-free (not counted), fail (the job ends with 3),"
            " replace-node. Such as exit:3=fail or oom=replace-node.",
            rule,
            multiple=True,
            ours=True,
        ),
        heading(
            "--failure-policy FILE",
            "A TOML file with rules ([[rule]] match, action) and the options below.",
            ours=True,
        ),
        *setting_flags(heading),
    ]


def setting_flags(heading: Heading = FAILURE) -> list[Flag]:
    """Return the flags that stand in the file too, by the same names."""
    return [
        heading(
            "--restart-window TIME",
            "Count only the restarts of the last TIME against --max-restarts, such as 24h;"
            " default: all.",
            seconds_above_zero,
            ours=True,
        ),
        heading(
            "--restart-backoff FIRST:MAX",
            "Space restarts: the first after FIRST, then doubling up to MAX, such as 0s:60s;"
            " default: none, and 0s:60s for those that are not counted.",
            backoff,
            ours=True,
        ),
        heading(
            "--max-node-failures N|never",
            "Exclude a node that was the root cause N times, where a spare can stand in;"
            f" default {defaults.MAX_NODE_FAILURES}.",
            limit,
            ours=True,
        ),
        heading(
            "--max-no-progress N|never",
            "With --hang-timeout or --watch-workers: end the job with 3 after N restarts"
            " running without a step beyond the furthest one so far; default"
            f" {defaults.MAX_NO_PROGRESS}.",
            limit,
            ours=True,
        ),
        heading(
            "--success-policy all|rank0",
            "The job has succeeded when all workers have (default), or when rank 0 has.",
            one_of("all", "rank0"),
            ours=True,
        ),
    ]


_OPTIONS: Final = Heading("Options")


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Everything that one ``ft-run policy`` was asked to do."""

    failure: str = _OPTIONS.option(
        "",
        "--explain FAILURE",
        "What has failed: exit:N, signal:NAME, oom, hang, node-lost, preempted, error:TEXT"
        " (last), such as 'exit:137 oom'.",
    )
    """Written as matches."""
    policy: PolicySpec = PolicySpec()
    seconds_after_start: float | None = _OPTIONS.option(
        None,
        "--after TIME",
        "How long the round had run, such as 2s; default: not known.",
        seconds,
    )
    is_repeated: bool = _OPTIONS.option(
        False, "--again", "The round before failed in the same way."
    )
    json: bool = _OPTIONS.option(False, "--json", "Print JSON instead of text.")


def policy_command() -> CommandLine:
    """Return the flags of ``ft-run policy``."""
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
    flags = [*flags_of(PolicyOptions), *policy_flags(_OPTIONS.name)]
    return CommandLine("ft-run policy", flags, HelpText(before, after))
