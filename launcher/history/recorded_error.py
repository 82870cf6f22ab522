"""The error file of a failed worker, as contained in a failure."""

import json
from collections.abc import Mapping
from typing import Any

from ...rendezvous.protocol.failure import Failure


def recorded(failure: Failure) -> dict[str, Any] | None:
    """Return the content of a failure's error file; None if it is invalid."""
    if not failure.error_json:
        return None
    try:
        error = json.loads(failure.error_json)
    except (ValueError, RecursionError):  # another node may send anything
        return None
    is_record = isinstance(error, dict) and isinstance(error.get("message"), str | dict)
    return error if is_record else None


def recorded_traceback(error: Mapping[str, Any]) -> str:
    """Return the traceback of an error file, or its message if it has no traceback."""
    message = error["message"]
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or message.get("message", "<N/A>"))
