"""The failure policy of the command line: rules, budget, exclusion, success.

``--on-failure`` and the other flags override ``--config FILE``; the rules of the flags come before
those of the file. Combinations without effect are refused here, before anything starts.
"""

import os
from collections.abc import Mapping, Sequence

from ... import defaults
from ...errors import UsageError
from ...rendezvous.policy.rules import Action, Rule
from ...rendezvous.protocol.messages import PolicySpec
from ..flags.stream_values import Streams, StreamSelection
from ..flags.values import shown
from ..options import RendezvousOptions
from .command_line import Given
from .config_file import ConfigFile, read_config
from .policy_flags import PolicyOptions, policy_command, setting_flags


def explained(argv: Sequence[str], environ: Mapping[str, str]) -> PolicyOptions:
    """Parse the options of ``ft-run policy``: ``argv`` (without that word) and ``environ``.

    Raises:
        UsageError: there is no failure to explain, or the policy is invalid.
    """
    given, rest = policy_command().read(argv, environ)
    if rest or given["explain"] is None:
        wrong = f"unexpected argument {shown(rest[0])}" if rest else "no failure was given"
        raise UsageError(
            f"{wrong} for ft-run policy; expected ft-run policy --explain 'exit:137 oom',"
            " or ./policy for a script of that name."
        )
    return given.fill(PolicyOptions, policy=policy_of(given, read_config(given)))


def launch_policy(
    given: Given,
    config: ConfigFile,
    rendezvous: RendezvousOptions,
    warnings: list[str],
    *,
    is_watched: bool,
) -> PolicySpec | None:
    """Return the policy of a job to start; None if all of it is the default.

    Raises:
        UsageError: as ``policy_of``, or a combination without effect.
    """
    policy = policy_of(given, config, is_watched=is_watched)
    refuse_useless(
        policy,
        rendezvous,
        is_limit_given=given["max_node_failures"] is not None,
        is_watched=is_watched,
    )
    if given["log_dir"] == os.devnull:
        _refuse_shrinking(policy)
    captured = [given.get(key, StreamSelection()) for key in ("redirects", "tee")]
    sees_stderr = any(s.default & Streams.ERR or s.by_local_rank for s in captured)
    captures = not (given["no_capture_errors"] or given["no_python"])
    if not (captures or sees_stderr) and any(rule.startswith("error:") for rule in policy.rules):
        warnings.append(
            "a rule with error: sees what @record writes, since exceptions are not captured with"
            " --no-capture-errors or --no-python; without @record it sees the last lines of stderr,"
            " where --tee 2 or --redirects 2 captures them."
        )
    return None if policy == PolicySpec() else policy


def policy_of(given: Given, config: ConfigFile, *, is_watched: bool = False) -> PolicySpec:
    """Return the failure policy of the flags and the file.

    Raises:
        UsageError: a rule can never match.
    """
    settings = dict(config.settings)
    for flag in setting_flags():
        if given[flag.key] is not None:
            settings[flag.key] = given[flag.key]
    rules = (*given["on_failure"], *config.rules)
    _refuse_repeated(rules)
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


# --- combinations ----------------------------------------------------------------------------


def _refuse_repeated(rules: tuple[Rule, ...]) -> None:
    """Refuse a rule that can never match, since an earlier one has the same match."""
    first: dict[str, Rule] = {}
    for later in rules:
        earlier = first.setdefault(later.match.text, later)
        if earlier is not later:
            raise UsageError(
                f"the rule {later.text} is never used: {earlier.text} comes before it, and"
                " the first rule that matches applies; expected one rule for each match."
            )


def refuse_useless(
    spec: PolicySpec,
    rendezvous: RendezvousOptions,
    *,
    is_limit_given: bool = False,
    is_watched: bool = True,
) -> None:
    """Refuse a combination without effect; the error has what is wrong, what is missing, and why.

    Raises:
        UsageError: for the first such combination.
    """
    rules = [Rule.parse(text) for text in spec.rules]
    most, limit = rendezvous.max_restarts, spec.max_node_failures
    is_free = any(rule.action is Action.RESTART_FREE for rule in rules)
    _refuse_useless_replacement(rules, rendezvous)
    if not most and spec.restart_window_s:
        raise _useless(
            f"--restart-window {spec.restart_window_s:g}s has nothing to count",
            "--max-restarts is 0",
            "the window says which restarts count against --max-restarts",
        )
    if not most and spec.backoff_max_s and not is_free:
        raise _useless(
            "--restart-backoff has nothing to space",
            "--max-restarts is 0 and no rule says restart-free",
            "the delays come before restarts",
        )
    if spec.max_no_progress and not is_watched:
        raise _useless(
            f"--max-no-progress {spec.max_no_progress} could never end the job",
            "neither --hang-timeout nor --watch-workers was given",
            "the steps of workers are known where they are watched",
            right="one of them as well, or no --max-no-progress",
        )
    if is_limit_given and limit > most and not is_free and not spec.restart_window_s:
        raise _useless(
            f"--max-node-failures {limit} could never exclude a node",
            f"--max-restarts is {most}",
            "each failure of a node costs a restart, so that the job ends before",
            right=f"--max-restarts {limit} or more, or fewer failures",
        )


def _refuse_useless_replacement(rules: list[Rule], rendezvous: RendezvousOptions) -> None:
    replacing = next((rule for rule in rules if rule.action is Action.REPLACE_NODE), None)
    if replacing is None:
        return
    useless = f"the rule {replacing.text} could never replace a node"
    if rendezvous.endpoint is None:
        raise _useless(
            useless,
            "no --rdzv-endpoint was given",
            "the other node comes by the endpoint",
            right="--rdzv-endpoint HOST:PORT, or another action",
        )
    if not rendezvous.max_restarts:
        raise _useless(
            useless,
            "--max-restarts is 0",
            "the round without that node is a restart that counts against --max-restarts",
        )


def _refuse_shrinking(policy: PolicySpec) -> None:
    for text in policy.rules:
        if Rule.parse(text).action is Action.SHRINK:
            raise _useless(
                f"the rule {text} could never be used",
                f"--log-dir is {os.devnull}",
                "workers report the part in which memory ran out in a file there",
                right="another folder, or no --log-dir",
            )


def refuse_hang_rule(spec: PolicySpec | None, *, can_hang: bool) -> None:
    """Refuse a rule for hangs if hangs are not detected.

    Raises:
        UsageError: there is such a rule.
    """
    for text in spec.rules if spec is not None and not can_hang else ():
        if text.startswith("hang="):
            raise _useless(
                f"the rule {text} could never be used",
                "no --hang-timeout was given",
                "only with it hangs are found",
                right="--hang-timeout SECONDS or --hang-timeout auto as well",
            )


def _useless(wrong: str, missing: str, depends: str, *, right: str = "") -> UsageError:
    right = right or "--max-restarts N with N above 0 as well"
    return UsageError(f"{wrong}, because {missing}: {depends}; expected {right}.")
