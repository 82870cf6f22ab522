"""Makes text from elsewhere safe to print: what would steer a terminal becomes visible.

Host names, messages of workers, sentences of a master: none of it may move the cursor, change
colours or the title, or look like a line of its own.
"""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_CONTROL_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return text for one line: control characters but for tabs become escapes, as in Python."""
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return text of several lines: as ``printable``, but newlines stay."""
    return _CONTROL_IN_LINES.sub(_escape, text)


def _escape(match: "re.Match[str]") -> str:
    return repr(match[0])[1:-1]
