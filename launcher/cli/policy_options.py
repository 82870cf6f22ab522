"""The failure policy of the command line: rules, budget, exclusion, success.

``--on-failure`` and the other flags beat ``--failure-policy FILE``; the rules of the flags come
before those of the file. Combinations that cannot work are refused here, before anything starts.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ... import defaults
from ...errors import UsageError
from ...rendezvous.policy.rules import Action, Rule
from ...rendezvous.protocol.messages import PolicySpec
from ..flags.stream_values import Streams, StreamSelection
from ..flags.values import BadValue, nearest, refuse, shown
from ..options import RendezvousOptions
from .command_line import Given
from .policy_flags import PolicyOptions, policy_command, rule, setting_flags

_RULE_KEYS: Final = ("match", "action")


def explained(argv: Sequence[str], environ: Mapping[str, str]) -> PolicyOptions:
    """Return the options of ``ft-run policy``: ``argv`` (without that word) and ``environ``.

    Raises:
        UsageError: there is no failure to explain, or the policy is wrong.
    """
    given, rest = policy_command().read(argv, environ)
    if rest or given["explain"] is None:
        wrong = f"unexpected argument {shown(rest[0])}" if rest else "no failure was given"
        raise UsageError(
            f"{wrong} for ft-run policy; expected ft-run policy --explain 'exit:137 oom',"
            " or ./policy for a script of that name."
        )
    return given.fill(PolicyOptions, policy=policy_of(given))


def launch_policy(
    given: Given, rendezvous: RendezvousOptions, warnings: list[str], *, is_watched: bool
) -> PolicySpec | None:
    """Return the policy of a job to start; None if all of it is the default.

    Args:
        given: the command line.
        rendezvous: what the policy must fit to.
        warnings: takes sentences for the user.
        is_watched: the steps of workers are known.

    Raises:
        UsageError: as ``policy_of``, or the combination cannot work.
    """
    policy = policy_of(given, is_watched=is_watched)
    refuse_useless(
        policy,
        rendezvous,
        is_limit_given=given["max_node_failures"] is not None,
        is_watched=is_watched,
    )
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


def policy_of(given: Given, *, is_watched: bool = False) -> PolicySpec:
    """Return the failure policy that flags and file ask for.

    Args:
        given: the values of ``policy_flags``.
        is_watched: the steps of workers are known.

    Raises:
        UsageError: the file cannot be read or is wrong, or a rule is never reached.
    """
    path = given["failure_policy"]
    settings = _read_file(path) if path else {}
    for flag in setting_flags():
        if given[flag.key] is not None:
            settings[flag.key] = given[flag.key]
    rules = (*given["on_failure"], *settings.get("rule", ()))
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


# --- the file --------------------------------------------------------------------------------


def _read_file(path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    right = "a TOML file such as docs/guide/failure-policy.md shows"
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        why = f"which cannot be read ({error.strerror})"
        raise refuse("--failure-policy", path, BadValue(right, why)) from None
    except ValueError as error:  # also for text that is not UTF-8
        first = str(error).splitlines()[0][:200]
        raise refuse("--failure-policy", path, BadValue(right, f"not TOML: {first}")) from None
    return _settings(content, path)


def _settings(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    flags = {flag.spelling[2:]: flag for flag in setting_flags()}
    known = [*flags, "rule"]
    settings: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            raise _unknown_key(key, known, path)
        if key == "rule":
            settings[key] = _rules(value, path)
        elif isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UsageError(f"{path}: {key} is {shown(str(value))}; expected a text or a number.")
        else:
            flag = flags[key]
            settings[flag.key] = flag.value([str(value)], f"{path}: {key}")
    return settings


def _rules(tables: Any, path: str) -> list[Rule]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: rule is not a list of tables; expected [[rule]] for each.")
    rules = []
    for number, table in enumerate(tables, start=1):
        where = f"{path}: rule {number}"
        for key in table:
            if key not in _RULE_KEYS:
                raise _unknown_key(key, list(_RULE_KEYS), where)
        for key in _RULE_KEYS:
            if not isinstance(table.get(key), str):
                raise UsageError(
                    f'{where} has no text for {key}; expected match = "exit:3" and action = "fail".'
                )
        text = f"{table['match']}={table['action']}"
        try:
            rules.append(rule(text))
        except BadValue as bad:
            raise refuse(where, text, bad) from None
    return rules


def _unknown_key(key: str, known: list[str], where: str) -> UsageError:
    guess = nearest(key.replace("_", "-").lower(), known)
    advice = f"did you mean {guess}?" if guess else f"expected {', '.join(known)}."
    return UsageError(f"{where}: unknown key {shown(key)}; {advice}")


# --- combinations ----------------------------------------------------------------------------


def _refuse_repeated(rules: tuple[Rule, ...]) -> None:
    """Refuse a rule that is never reached, since another with the same match comes first."""
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
    """Refuse a combination that cannot work: say what is wrong, what is missing, and why.

    Args:
        spec: the policy.
        rendezvous: has the budget, and whether other nodes can come.
        is_limit_given: ``--max-node-failures`` is no default.
        is_watched: the steps of workers are known.

    Raises:
        UsageError: the first of them.
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


def refuse_hang_rule(spec: PolicySpec | None, *, can_hang: bool) -> None:
    """Refuse a rule for hangs where none is looked for.

    Raises:
        UsageError: there is one.
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
