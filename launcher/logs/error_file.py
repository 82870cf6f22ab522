"""The file with a failing worker's exception (``TORCHELASTIC_ERROR_FILE``).

``@record`` or ``training/worker/starter/capture.py`` writes it. Any process can write it, so its
content is not trusted: a file that is not regular, not JSON, too large, too deep or without a
message is ignored, and every number is bounded.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ... import defaults
from ...training.worker.starter.capture import SURVIVED_S, SURVIVED_SUFFIX
from ..processes.regular_file import head_of_file

MESSAGE_MAX_CHARS = 4096
_READ_MAX_BYTES = 16 * defaults.ERROR_FILE_MAX_BYTES
_TRACEBACK_MARGIN = 2048
"""Space for JSON, the message and escapes next to the traceback in a bounded record."""
_DEPTH_MAX = 16
"""Maximum nesting of lists and objects; torch writes three levels."""
_NUMBER_MAX = 2**63
_TIME_MAX_S = 2**32
"""Unix time in seconds, in 2106. A larger value has a different unit."""


class ErrorFile(Struct, frozen=True):
    """An error recorded by a worker."""

    path: str
    text: str
    """The record as ASCII JSON; at most ``defaults.ERROR_FILE_MAX_BYTES``."""
    message: str
    """Type and text of the exception; at most ``MESSAGE_MAX_CHARS``."""
    time_s: int | None
    """Unix time in whole seconds; None if the record has no plausible time."""


def read_error_of_exit(path: str, now_s: float) -> ErrorFile | None:
    """Return the error of a worker that exited, else one that it seemed to survive just before."""
    error = read_error_file(path)
    if error is not None or not path:
        return error
    survived = read_error_file(path + SURVIVED_SUFFIX)
    if survived is None or survived.time_s is None:
        return None
    # Its time is in whole seconds.
    return survived if abs(int(now_s) - survived.time_s) <= SURVIVED_S else None


def read_error_file(path: str) -> ErrorFile | None:
    """Return the record of a worker, with a bounded traceback; None if there is no valid one."""
    data = head_of_file(path, _READ_MAX_BYTES) if path else None
    if data is None:
        return None
    try:
        error = json.loads(data.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):  # ValueError also for numbers with thousands of digits
        return None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str | dict):
        return None
    if not _is_sound(error, _DEPTH_MAX):
        return None
    text = json.dumps(error)
    if len(text) > defaults.ERROR_FILE_MAX_BYTES:
        text = json.dumps(_shortened(error))
    return ErrorFile(path, text, _message(error)[:MESSAGE_MAX_CHARS], _time_s(error))


def _is_sound(value: Any, depth: int) -> bool:
    """Return whether all numbers are bounded, and nothing is nested deeper than ``depth``."""
    if isinstance(value, int | float):
        return abs(value) < _NUMBER_MAX  # not NaN or infinity either
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_sound(item, depth - 1) for item in inner)
    return True


def _shortened(error: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what identifies the error: the message, and the end of the traceback."""
    stack = str(_extra(error).get("py_callstack", ""))
    # JSON may need six bytes per character.
    kept = (defaults.ERROR_FILE_MAX_BYTES - _TRACEBACK_MARGIN - 6 * 512) // 6
    return {
        "message": {
            "message": _message(error)[:512],
            "extraInfo": {
                "py_callstack": stack[-kept:],
                "timestamp": str(_extra(error).get("timestamp", "0"))[:20],
            },
        }
    }


def _extra(error: Mapping[str, Any]) -> Mapping[str, Any]:
    message = error["message"]
    extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
    return extra if isinstance(extra, dict) else {}


def _message(error: Mapping[str, Any]) -> str:
    message = error["message"]
    return str(message.get("message", "") if isinstance(message, dict) else message)


def _time_s(error: Mapping[str, Any]) -> int | None:
    given = str(_extra(error).get("timestamp", error.get("timestamp")))
    if not (given.isascii() and given.isdecimal() and len(given) <= len(str(_TIME_MAX_S))):
        return None
    return int(given) if 0 < int(given) < _TIME_MAX_S else None
