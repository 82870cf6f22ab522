"""The failure policy of the command line: rules, budget, exclusion, success.

Flags override ``--config FILE``, and their rules come before those of the file. Combinations
without effect are refused here, before anything starts.
"""

from collections.abc import Mapping, Sequence

from ... import defaults
from ...errors import UsageError
from ...rendezvous.policy.rules import Action, Rule
from ...rendezvous.protocol.bounds import RULES_MAX
from ...rendezvous.protocol.messages import PolicySpec
from ..options import RendezvousOptions
from .command_line import Given
from .config_file import ConfigFile, read_config
from .policy_flags import PolicyOptions, policy_command, setting_flags

_NO_RESTARTS = ("--max-restarts is 0", "--max-restarts N with N above 0 as well")


def explained(argv: Sequence[str], environ: Mapping[str, str]) -> PolicyOptions:
    """Parse the arguments after ``ft-run policy``."""
    right = "ft-run policy --explain 'exit:137 oom', or ./policy for a script of that name"
    given, _ = policy_command().read_all(argv, environ, right=right)
    if given["explain"] is None:
        raise UsageError(f"no failure was given for ft-run policy; expected {right}.")
    return given.fill(PolicyOptions, policy=policy_of(given, read_config(given)))


def launch_policy(
    given: Given,
    config: ConfigFile,
    rendezvous: RendezvousOptions,
    *,
    is_watched: bool,
    can_hang: bool,
) -> PolicySpec | None:
    """Return the policy of a job, None if all is default; refuse options without effect."""
    policy = policy_of(given, config, is_watched=is_watched)
    rules = [Rule.parse(text) for text in policy.rules]
    has_restarts = rendezvous.max_restarts > 0
    is_free = any(rule.action is Action.RESTART_FREE for rule in rules)
    if policy.restart_window_s and not has_restarts:
        raise _useless("--restart-window", *_NO_RESTARTS)
    if policy.backoff_max_s and not (has_restarts or is_free):
        raise _useless("--restart-backoff", *_NO_RESTARTS)
    if policy.max_no_progress and not is_watched:
        raise _useless(
            "--max-no-progress",
            "neither --hang-timeout nor --watch-workers was given",
            "one of them as well",
        )
    for rule in rules:
        replaces = rule.action is Action.REPLACE_NODE
        if replaces and rendezvous.endpoint is None:
            right = "--rdzv-endpoint HOST:PORT, or another action"
            raise _useless(f"the rule {rule.text}", "no --rdzv-endpoint was given", right)
        if replaces and not has_restarts:
            raise _useless(f"the rule {rule.text}", *_NO_RESTARTS)
        if rule.match.text == "hang" and not can_hang:
            right = "--hang-timeout SECONDS or --hang-timeout auto as well"
            raise _useless(f"the rule {rule.text}", "no --hang-timeout was given", right)
    return None if policy == PolicySpec() else policy


def policy_of(given: Given, config: ConfigFile, *, is_watched: bool = False) -> PolicySpec:
    """Return the failure policy of the flags and the file."""
    settings = dict(config.settings)
    for flag in setting_flags():
        if given[flag.key] is not None:
            settings[flag.key] = given[flag.key]
    rules = (*given["on_failure"], *config.rules)
    _refuse_repeated(rules)
    if len(rules) > RULES_MAX:
        raise UsageError(
            f"too many rules of --on-failure ({len(rules)}): expected at most {RULES_MAX}."
        )
    first, longest = settings.get("restart_backoff", (0.0, 0.0))
    return PolicySpec(
        rules=tuple(rule.text for rule in rules),
        restart_window_s=settings.get("restart_window", 0.0),
        backoff_first_s=first,
        backoff_max_s=longest,
        max_node_failures=settings.get("max_node_failures", defaults.MAX_NODE_FAILURES),
        rank0_decides=settings.get("success_policy") == "rank0",
        max_no_progress=settings.get(
            "max_no_progress", defaults.MAX_NO_PROGRESS if is_watched else 0
        ),
    )


def _refuse_repeated(rules: tuple[Rule, ...]) -> None:
    """Refuse a rule that can never match because an earlier one has the same match."""
    first: dict[str, Rule] = {}
    for later in rules:
        earlier = first.setdefault(later.match.text, later)
        if earlier is not later:
            raise UsageError(
                f"the rule {later.text} is never used: {earlier.text} comes before it, and"
                " the first rule that matches applies; expected one rule for each match."
            )


def _useless(what: str, why: str, right: str) -> UsageError:
    return UsageError(f"{what} has no effect, because {why}; expected {right}.")
