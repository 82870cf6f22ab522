"""The flags of the failure policy, the parsers of their values, and ``ft-run policy``."""

from typing import Final

from msgspec import Struct

from ... import defaults
from ...rendezvous.policy.matches import BadRule
from ...rendezvous.policy.rules import Rule
from ...rendezvous.protocol.messages import PolicySpec
from ..flags.flag import Flag, Heading, flags_of
from ..flags.headings import FAILURES
from ..flags.values import BadValue, one_of, seconds, seconds_above_zero, whole
from .command_line import CommandLine, HelpText


def rule(text: str) -> Rule:
    """Parse one rule, ``MATCH=ACTION``."""
    try:
        return Rule.parse(text)
    except BadRule as bad:
        raise BadValue(bad.right, bad.why) from None


def backoff(text: str) -> tuple[float, float]:
    """Return the first and the longest delay of ``FIRST:MAX``, in seconds."""
    right = "FIRST:MAX with FIRST <= MAX and MAX > 0, e.g. 0s:60s"
    first, colon, longest = text.partition(":")
    try:
        found = seconds(first), seconds(longest)
    except BadValue:
        raise BadValue(right) from None
    if not colon or found[0] > found[1] or not found[1]:
        raise BadValue(right)
    return found


def limit(text: str) -> int:
    """Parse a limit; ``never`` is 0, no limit."""
    if text.strip().lower() == "never":
        return 0
    try:
        return whole(1)(text)
    except BadValue:
        raise BadValue("a whole number >= 1, or never") from None


def policy_flags() -> list[Flag]:
    """Return the flags of the failure policy, for ``ft-run`` and ``ft-run policy``."""
    return [
        FAILURES(
            "--on-failure MATCH=ACTION",
            "What to do after a failure, e.g. exit:3=fail; repeatable, the first match applies."
            " MATCH: exit:N, exit:A-B, signal:NAME, oom, device-oom, corrupt (the memory of one"
            " rank has changed), error:REGEX, hang, node-lost or preempted. ACTION: restart (the"
            " default), restart-free (not counted), fail (ends the job with exit code 3),"
            " replace-node or shrink (device-oom only: the same samples in smaller parts of"
            " ElasticBatches).",
            rule,
            multiple=True,
            ours=True,
        ),
        FAILURES(
            "--config FILE",
            "TOML file with failure rules ([[rule]] with match and action), the options below by"
            " name, and a [checks] table of check options, e.g. check-level = 'full'. The command"
            " line and PET_ variables override it.",
            ours=True,
            also="--failure-policy",
        ),
        *setting_flags(),
    ]


def setting_flags() -> list[Flag]:
    """Return the flags that the config file may set, too, by the same names."""
    return [
        FAILURES(
            "--restart-window DURATION",
            "Count only the restarts of this last period against --max-restarts, e.g. 24h"
            " (default: all restarts).",
            seconds_above_zero,
            ours=True,
        ),
        FAILURES(
            "--restart-backoff FIRST:MAX",
            "Delay of restarts: FIRST, then doubling up to MAX, e.g. 0s:60s (default: none, and"
            " 0s:60s for restarts that are not counted).",
            backoff,
            ours=True,
        ),
        FAILURES(
            "--max-node-failures N|never",
            "Exclude a node that was the root cause of N failures, if a spare can replace it"
            f" (default: {defaults.MAX_NODE_FAILURES}).",
            limit,
            ours=True,
        ),
        FAILURES(
            "--max-no-progress N|never",
            "End the job with exit code 3 after N consecutive restarts without a new step; needs"
            f" --hang-timeout or --watch-workers (default: {defaults.MAX_NO_PROGRESS}).",
            limit,
            ours=True,
        ),
        FAILURES(
            "--success-policy all|rank0",
            "The job succeeds when all workers have succeeded, or when rank 0 has (default: all).",
            one_of("all", "rank0"),
            ours=True,
        ),
    ]


_OPTIONS: Final = Heading("Options")


class PolicyOptions(Struct, frozen=True):
    """The options of ``ft-run policy``."""

    failure: str = _OPTIONS.option(
        "",
        "--explain FAILURES",
        "The failure: exit:N, signal:NAME, oom, hang, node-lost, preempted and error:TEXT (last),"
        " separated by spaces, e.g. 'exit:137 oom'.",
    )
    """In the syntax of matches in failure rules."""
    policy: PolicySpec = PolicySpec()
    seconds_after_start: float | None = _OPTIONS.option(
        None,
        "--after DURATION",
        "Time from the start of the workers to the failure, e.g. 2s (default: unknown).",
        seconds,
    )
    is_repeated: bool = _OPTIONS.option(
        False, "--again", "The previous round failed in the same way."
    )
    json: bool = _OPTIONS.option(False, "--json", "Print JSON instead of text.")


def policy_command() -> CommandLine:
    """Return the flags of ``ft-run policy``."""
    before = """\
Usage: ft-run policy --explain FAILURES [OPTIONS]

Show which rule of the failure policy applies to a failure and why, and which
rules are skipped. Nothing is started.

Example:
  ft-run policy --explain 'exit:137 oom' --on-failure oom=replace-node
"""
    after = "Every option can be set by PET_<NAME>, e.g. PET_ON_FAILURE='oom=fail;hang=fail'.\n"
    own = flags_of(PolicyOptions)
    common = [*(flag.key for flag in own), "on_failure", "config", "help_all"]
    text = HelpText(before, after, common, after)
    return CommandLine("ft-run policy", [*own, *policy_flags()], text)
