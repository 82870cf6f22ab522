"""Checks messages of nodes and hosts against the bounds in the types of their fields. Pure.

``bounded`` has the types. ``MAX_FROM_NODE_BYTES`` of ``transport.channel_options`` bounds the total
size of a message.
"""

import enum
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any

from ...values import is_value
from .bounded import Finite, Length, Real, Whole
from .lease_messages import NO_HOST, LeaseAnswer, LeaseAsk, SuccessionSpec
from .messages import NodeMessage

_Check = Callable[[str, Any], None]
"""Takes the name of a field and its value."""


class OutOfBounds(Exception):  # noqa: N818 - the sentence reads so
    """Raised for a message that no agent sends; the text is a one-line error."""


def check(message: NodeMessage | LeaseAsk | LeaseAnswer | SuccessionSpec) -> None:
    """Check every number, text and list of a message.

    Raises:
        OutOfBounds: a value is not within its bounds.
    """
    _each(message)


def check_lease(message: LeaseAsk | LeaseAnswer, hosts: int) -> None:
    """Check a message of another one of so many listed hosts; raises as ``check``."""
    check(message)
    if isinstance(message, LeaseAsk):
        _whole(Whole(0, hosts - 1), "host", message.host)
        _whole(Whole(0, message.number), "term", message.term)
        _whole(Whole(0, message.term), "round_term", message.round_term)
    else:
        _whole(Whole(NO_HOST, hosts - 1), "host", message.host)


def _each(value: Any) -> None:
    kind: Any = type(value)
    for name, check_field in _checks_of(kind):
        check_field(name, getattr(value, name))


@functools.cache
def _checks_of(kind: type) -> tuple[tuple[str, _Check], ...]:
    """Return the fields of a message that have bounds, and the check of each."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = ((name, _check_of(hint, f"{kind.__name__}.{name}")) for name, hint in hints.items())
    return tuple((name, one) for name, one in found if one is not None)


def _check_of(hint: Any, field: str) -> _Check | None:
    """Return the check of the values of a type; None if any value is valid.

    Raises:
        TypeError: it is a number, a text or a list without bounds.
    """
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (inner,) = (one for one in typing.get_args(hint) if one is not type(None))
        return _unless_none(_check_of(inner, field))
    if typing.get_origin(hint) is typing.Annotated:
        inner, bound, *_ = typing.get_args(hint)
        match bound:
            case Whole():
                return functools.partial(_whole, bound)
            case Real():
                return functools.partial(_real, bound)
            case Finite():
                return functools.partial(_finite, bound)
            case Length() if inner is str:
                return functools.partial(_text, bound)
            case Length():
                return functools.partial(_list, bound, _check_of(typing.get_args(inner)[0], field))
            case _:
                return None
    if is_value(hint):
        return lambda _, value: _each(value)
    if hint is bool or issubclass(hint, enum.Enum):
        return None
    raise TypeError(f"{field} has no bounds")


def _unless_none(inner: _Check | None) -> _Check | None:
    def look(name: str, value: Any) -> None:
        if value is not None and inner is not None:
            inner(name, value)

    return look


def _whole(bound: Whole, name: str, value: int) -> None:
    if not bound.least <= value <= bound.most:
        raise OutOfBounds(
            f"{name} is {value}, which no agent sends; expected {bound.least} to {bound.most}."
        )


def _real(bound: Real, name: str, value: float) -> None:
    if not 0 <= value <= bound.most:  # also for NaN
        raise OutOfBounds(f"{name} is {value:g}; expected 0 to {bound.most:g}.")


def _finite(bound: Finite, name: str, value: float) -> None:
    if bound.most < value < math.inf:
        raise OutOfBounds(f"{name} is {value:g}; expected at most {bound.most:g}.")


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
