"""Values of a script that ``--auto-tune on`` may change: what a worker and its agent exchange.

The values of a round are in the environment of its workers. The worker declares in its page which
names the script has, the value in use and those to try.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T", bool, int, float, str)

VARIABLE = "FT_RUN_TUNED"
"""In the environment of workers: the values of a round by name, as JSON."""
OMP_NUM_THREADS = "OMP_NUM_THREADS"
_NAME = re.compile(r"[\w.-]{1,64}")
_TEXT_MAX = 100
_VALUES_MAX = 12
"""There are no more trials in a job."""
_declared: dict[str, list[Any]] = {}
"""By name, the value in use and the list of values."""


def key_of(name: str) -> str:
    """Return the name of a setting that is a value of the script: its call, in short."""
    return f'tuned("{name}")'


def is_key(text: str) -> bool:
    """Return whether a text is a result of ``key_of``."""
    return text == key_of(name := text[7:-2]) and _NAME.fullmatch(name) is not None


def is_plain(value: object) -> bool:
    """Return whether a value is a number, a short string or a boolean that JSON has."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= _TEXT_MAX and value.isprintable()
    return type(value) is bool or (type(value) is int and abs(value) < 1 << 53)


def decoded(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a round from their JSON, without invalid ones."""
    found = {}
    for key, text in values.items():
        with suppress(ValueError, RecursionError):
            if is_plain(value := json.loads(text)):
                found[key] = value
    return found


def encoded(value: object) -> str:
    """Return a value as ``decoded`` takes it, in at most two characters for each of a text."""
    return json.dumps(value, ensure_ascii=False)


def environ_of(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of workers for the values of a round, which are JSON."""
    of_script = decoded(values)
    threads = of_script.pop(OMP_NUM_THREADS, None)
    environ = {} if threads is None else {OMP_NUM_THREADS: str(threads)}
    return environ | ({VARIABLE: json.dumps(of_script)} if of_script else {})


def choose(name: str, default: T, values: Iterable[T]) -> T:
    """Return the value of ``ft_run.training.tuned``, and declare the others."""
    known = [default, *_checked(name, default, values)]
    try:
        given = json.loads(os.environ.get(VARIABLE, "{}")).get(key_of(name))
    except (ValueError, AttributeError):
        given = None
    found = next((one for one in known if type(one) is type(given) and one == given), default)
    page = getattr(sys.modules.get("_ft_run_hook"), "tuning", None)
    mine = [found, list(dict.fromkeys(known))]
    if page is not None and _declared.get(name) != mine:
        all_of_them = _declared | {name: mine}
        if page.declare(json.dumps(all_of_them, ensure_ascii=False).encode()):
            _declared[name] = mine  # else it does not fit, and others still may
    return found


def _checked(name: object, default: object, values: object) -> Sequence[Any]:
    """Return the values as a list.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: its value is invalid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"invalid value {name!r} for name: expected 1 to 64 letters, digits, '_', '.' or '-'"
        )
    if not isinstance(values, list | tuple):
        raise TypeError(f"invalid value {values!r} for values of {name!r}: expected a list")
    for value in (default, *values):
        if not is_plain(value):
            raise TypeError(
                f"invalid value {value!r} in tuned({name!r}): expected a finite number, a boolean"
                f" or a printable string of at most {_TEXT_MAX} characters"
            )
    if not 1 <= len(values) <= _VALUES_MAX or len(set(values)) < len(values):
        raise ValueError(
            f"invalid value {values!r} for values of {name!r}: expected 1 to {_VALUES_MAX}"
            " different values"
        )
    return values
