"""Types of message fields with their bounds, and the check of incoming messages.

A master accepts only values that it can forward, store and show, and so do a node and ``ft-run
status``. So each number, string and list of a message has bounds, far above the usual values. They
are part of its type: ``Annotated[int, Whole(0, 65535)]`` is an ``int`` for all other code. The
first check of a message raises if a number, string or list has no bounds. ``MAX_FROM_NODE_BYTES``
of ``transport.channel_options`` bounds the total size of a message.
"""

import enum
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final

from msgspec import Struct, StructMeta

from ... import defaults

COUNT_MAX: Final = 999_999_999
"""As on the command line. Slightly larger numbers still fit any field of a message."""
BALLOT_MAX: Final = 2**62
"""Limit of the numbers and terms of leases; steps of ``acceptor._JUMP_MAX`` never exhaust it."""
NODES_MAX: Final = 100_000
SECONDS_MAX: Final = 1e9
"""As on the command line."""
SHORT_TEXT_MAX_CHARS: Final = 512
RULES_MAX: Final = 100
"""Parsing the longest regular expression takes 0.04 s."""


class Whole(Struct, frozen=True):
    """Bounds of a whole number."""

    least: int
    most: int


class Real(Struct, frozen=True):
    """Bounds of a real number; the minimum is 0."""

    most: float
    may_be_infinite: bool = False
    """Whether infinity is valid, which means never."""


class Length(Struct, frozen=True):
    """Bounds of a string, in characters, or of a list, in entries."""

    most: int
    is_name: bool = False
    """Printable characters only, because it is used unchanged on terminals and in environments."""
    is_needed: bool = False


class Called(Struct, frozen=True):
    """Name of an option that must be the same on all nodes, for the error if it differs.

    Without it, the name is that of the field: ``--max-restarts``, ``--restart-window in seconds``.
    """

    words: str


Unchecked = Annotated[int, "compared before anything else, and never kept"]
Count = Annotated[int, Whole(0, COUNT_MAX)]
CountOrNone = Annotated[int, Whole(-1, COUNT_MAX)]
"""-1 if none."""
Ballot = Annotated[int, Whole(0, BALLOT_MAX)]
ExitCode = Annotated[int, Whole(-255, 255)]
"""As in ``subprocess``: negative for a signal."""
Workers = Annotated[int, Whole(0, 65_536)]
"""Number of workers of one node."""
Port = Annotated[int, Whole(0, 65_535)]
Age = Annotated[int, Whole(0, 999_999_999)]
"""In seconds, up to some thirty years; the sum of two still fits an unsigned field."""
Date = Annotated[int, Whole(0, 99_999_999_999)]
"""Up to the year 5138: a later time cannot be shown as a date."""
Seconds = Annotated[float, Real(SECONDS_MAX)]
SecondsOrNever = Annotated[float, Real(SECONDS_MAX, may_be_infinite=True)]
Name = Annotated[str, Length(512, is_name=True)]
"""A host name has at most 253 characters."""
Names = Annotated[str, Length(4_096, is_name=True)]
"""Several names, separated by commas."""
Reason = Annotated[str, Length(512, is_needed=True)]
ShortText = Annotated[str, Length(SHORT_TEXT_MAX_CHARS)]
Text = Annotated[str, Length(4_096)]
"""Messages, paths and rules."""
LongText = Annotated[str, Length(1 << 20)]
"""Text of the master for display: about several nodes, or all ranks."""
Report = Annotated[str, Length(256 * 1024)]
"""Measurements of one node in a step of the checks: a few kB."""
Rules = Annotated[tuple[Text, ...], Length(RULES_MAX)]
Ages = Annotated[tuple[Age, ...], Length(10_000)]
"""Ages of the recorded restarts of a node, or of the job within its window."""
OF_A_NODE = Length(65_536)
"""Maximum number of workers."""
Ranks = Annotated[tuple[Count, ...], OF_A_NODE]
ErrorFile = Annotated[str, Length(defaults.ERROR_FILE_MAX_BYTES)]
ErrorText = Annotated[str, Length(2 * 4_096)]
StderrTail = Annotated[str, Length(defaults.STDERR_TAIL_MAX_BYTES)]


_Check = Callable[[str, Any], None]
"""Its arguments are the name of a field and its value."""


class OutOfBounds(Exception):  # noqa: N818 - the sentence reads so
    """Raised for a message that no agent sends, with a one-line error."""


def check(message: object) -> None:
    """Raise ``OutOfBounds`` if a number, string or list of a message exceeds its bounds."""
    kind: Any = type(message)
    for name, check_field in _checks_of(kind):
        check_field(name, getattr(message, name))


@functools.cache
def _checks_of(kind: type) -> tuple[tuple[str, _Check], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found = ((name, _check_of(hint, f"{kind.__name__}.{name}")) for name, hint in hints.items())
    return tuple((name, one) for name, one in found if one is not None)


def _check_of(hint: Any, field: str) -> _Check | None:
    """Return the check of a type, None for any value; raise ``TypeError`` if it lacks bounds."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (inner,) = (one for one in typing.get_args(hint) if one is not type(None))
        return _unless_none(_check_of(inner, field))
    if typing.get_origin(hint) is typing.Annotated:
        inner, bound, *_ = typing.get_args(hint)
        match bound:
            case Whole():
                return functools.partial(check_whole, bound)
            case Real():
                return functools.partial(_real, bound)
            case Length() if inner is str:
                return functools.partial(_text, bound)
            case Length():
                return functools.partial(_list, bound, _check_of(typing.get_args(inner)[0], field))
            case _:
                return None
    if isinstance(hint, StructMeta):
        return lambda _, value: check(value)
    if hint is bool or issubclass(hint, enum.Enum):
        return None
    raise TypeError(f"{field} has no bounds")


def _unless_none(inner: _Check | None) -> _Check | None:
    def look(name: str, value: Any) -> None:
        if value is not None and inner is not None:
            inner(name, value)

    return look


def check_whole(bound: Whole, name: str, value: int) -> None:
    """Check a whole number with a name; raises like ``check``."""
    if not bound.least <= value <= bound.most:
        raise OutOfBounds(
            f"{name} is {value}, which ft-run never sends; expected {bound.least} to {bound.most}."
        )


def _real(bound: Real, name: str, value: float) -> None:
    is_never = bound.may_be_infinite and value == math.inf
    if not (0 <= value <= bound.most or is_never):  # also for NaN
        raise OutOfBounds(f"{name} is {value:g}; expected 0 to {bound.most:g}.")


def _list(bound: Length, inner: _Check | None, name: str, values: tuple[Any, ...]) -> None:
    if len(values) > bound.most:
        raise OutOfBounds(f"{name} has {len(values)} entries; expected at most {bound.most}.")
    if inner is not None:
        for value in values:
            inner(name, value)


def _text(bound: Length, name: str, text: str) -> None:
    if len(text) > bound.most:
        raise OutOfBounds(f"{name} has {len(text)} characters; expected at most {bound.most}.")
    if bound.is_name and not text.isprintable():
        raise OutOfBounds(
            f"{name} {text[:40]!a} has unprintable characters; expected printable ones only."
        )
    if bound.is_needed and not text:  # without a reason the node would not count as leaving
        raise OutOfBounds(f"{name} is empty; expected the reason why the node leaves.")
