"""Checks the types of the fields of events, for millions of lines."""

import enum
import typing
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any

import msgspec

from ...events.schema import event_classes

Check = Callable[[Any], bool]


def checks() -> dict[str, Check]:
    """Return a check of the fields for each event of this release, by its name."""
    return {
        kind.name: check(_fields_of(kind, is_finite=kind.is_finite)) for kind in event_classes()
    }


def check(kind: type[msgspec.Struct]) -> Check:
    """Return whether a value of JSON has the fields of a class."""

    def is_valid(value: Any) -> bool:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return False
        return True

    return is_valid


def _fields_of(kind: type[msgspec.Struct], *, is_finite: bool) -> type[msgspec.Struct]:
    """Return the class of the same fields in JSON; those that older releases lack are optional."""
    hints = typing.get_type_hints(kind)
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        in_json = _in_json(hints[field.name], is_finite=is_finite)
        fields.append((field.name, in_json, *(() if field.required else (msgspec.UNSET,))))
    return msgspec.defstruct(kind.__name__, fields, kw_only=True)


def _in_json(hint: Any, *, is_finite: bool) -> Any:
    """Return a type as it is in JSON. Later releases may add members to an enumeration."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    inner = tuple(_in_json(one, is_finite=is_finite) for one in arguments if one is not ...)
    if hint is Any:
        return float | str | bool
    if hint is float:
        return float if is_finite else float | None
    if origin in (UnionType, typing.Union):
        return typing.Union[inner]  # noqa: UP007 - of a tuple
    if origin is tuple:
        return list[inner[0]]  # type: ignore[valid-type]  # made at run time
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, inner[1]]  # type: ignore[valid-type]  # made at run time
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return str
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _fields_of(hint, is_finite=is_finite)
    return hint
