"""The file of ``--config``: failure rules and settings, and a table ``[checks]``.

Keys are names of flags without the leading dashes, with the values of these flags. The command line
and the ``PET_*`` variables override the file.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from ...errors import UsageError
from ...rendezvous.policy.rules import Rule
from ..flags.flag import Flag
from ..flags.values import BadValue, nearest, refuse, shown
from .check_flags import NETWORK_CHECK, training_check_flags
from .command_line import CommandLine, Given
from .policy_flags import rule, setting_flags

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_RULE_KEYS: Final = ("match", "action")
_RIGHT: Final = "a TOML file with [[rule]], settings and [checks], see docs/guide/failure-policy.md"


class ConfigFile(Struct, frozen=True):
    """The content of the file; empty without a file."""

    path: str = ""
    rules: Sequence[Rule] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values of the failure policy, by flag key."""
    checks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The text and, for errors, the origin of each value, by flag key."""


def read_config(given: Given) -> ConfigFile:
    """Return the content of the file of ``--config``."""
    if not given["config"]:
        return ConfigFile()
    path, name = given["config"], given.origin("config")
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise refuse(name, path, BadValue(_RIGHT, str(error.strerror))) from None
    except (ValueError, RecursionError) as error:  # including text that is not UTF-8
        first = str(error).splitlines()[0][:200]
        raise refuse(name, path, BadValue(_RIGHT, f"not TOML: {first}")) from None
    tables = {key: content.pop(key) for key in ("rule", "checks") if key in content}
    flags = {flag.key: flag for flag in setting_flags()}
    texts = _texts(content, [*flags.values()], path, ["rule", "checks"])
    checks = tables.get("checks", {})
    if not isinstance(checks, dict):
        raise UsageError(f"{path}: checks is not a table; expected [checks].")
    return ConfigFile(
        path,
        _rules(tables.get("rule", []), path),
        {key: flags[key].value([text], origin) for key, (text, origin) in texts.items()},
        _texts(checks, training_check_flags(), f"[checks] of {path}"),
    )


def add_checks(
    line: CommandLine, given: Given, config: ConfigFile, warnings: list[str] | None = None
) -> None:
    """Set the flags of ``line`` that ``[checks]`` sets and that were not given.

    Warn if ``[checks]`` has no effect because ``--network-check`` is not given; with ``warnings``
    None, the command checks in any case.
    """
    found = Given(line.flags)
    for key, (text, origin) in config.checks.items():
        if key in found.values and key not in given.texts:
            found.put(key, [text], origin)
    is_on = warnings is None or given[NETWORK_CHECK.key] or found[NETWORK_CHECK.key]
    if is_on or not found.texts:
        given.merge(found)
    elif warnings is not None:
        warnings.append(
            f"[checks] of {config.path} has no effect without --network-check: ignored."
        )


def _texts(
    table: Mapping[str, Any], flags: Sequence[Flag], where: str, more: Sequence[str] = ()
) -> dict[str, tuple[str, str]]:
    known = {flag.spelling[2:]: flag for flag in flags}
    texts: dict[str, tuple[str, str]] = {}
    for name, value in table.items():
        if name not in known:
            raise _unknown_key(name, [*known, *more], where)
        flag, text = known[name], str(value)
        if isinstance(value, bool) and not flag.takes_value:
            text = str(int(value))
        elif isinstance(value, bool) or not isinstance(value, str | int | float):
            right = "text or a number" if flag.takes_value else "true or false"
            raise refuse(f"{name} in {where}", text, BadValue(right))
        texts[flag.key] = (text, f"{name} in {where}")
    return texts


def _rules(tables: Any, path: str) -> list[Rule]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: rule is not a list of tables; expected [[rule]] for each.")
    rules = []
    for number, table in enumerate(tables, start=1):
        where = f"rule {number} of {path}"
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
    name = key.replace("_", "-").lower()
    guess = f"check-{name}" if f"check-{name}" in known else nearest(name, known)
    advice = f"did you mean {guess}?" if guess else f"expected {', '.join(known)}."
    return UsageError(f"unknown key {shown(key)} in {where}; {advice}")
