"""Checks the types of the fields of events by the schema: compiled, for millions of lines."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ...events.schema import event_classes, json_schema

Check = Callable[[Any], bool]
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "string": (str,),
    "number": (int, float),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def checks() -> dict[str, Check]:
    """Return a check of the fields for each event of this release, by its name."""
    parts = json_schema()["$defs"]
    return {
        kind.name: _check(parts[kind.name], is_finite=kind.is_finite) for kind in event_classes()
    }


def _check(part: Mapping[str, Any], *, is_finite: bool) -> Check:
    """Return the check of a part of the schema. Later releases may add members to an ``enum``."""
    if "anyOf" in part:
        several = [_check(one, is_finite=is_finite) for one in part["anyOf"]]
        return lambda value: any(check(value) for check in several)
    if "enum" in part or "const" in part:
        return lambda value: isinstance(value, str)
    names = part["type"] if isinstance(part["type"], list) else [part["type"]]
    if is_finite and "number" in names:
        names = ["number"]
    types = tuple(kind for name in names for kind in _TYPES[name])
    has_boolean = bool in types
    if names == ["object"]:
        return _object(part, is_finite=is_finite)
    if names == ["array"]:
        item = _check(part["items"], is_finite=is_finite)
        return lambda value: isinstance(value, list) and all(map(item, value))
    return lambda value: isinstance(value, types) and (has_boolean or not isinstance(value, bool))


def _object(part: Mapping[str, Any], *, is_finite: bool) -> Check:
    if "additionalProperties" in part:
        each = _check(part["additionalProperties"], is_finite=is_finite)
        return lambda value: isinstance(value, dict) and all(map(each, value.values()))
    required = frozenset(part["required"])
    fields = [
        (name, _check(field, is_finite=is_finite)) for name, field in part["properties"].items()
    ]

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or not required <= value.keys():
            return False
        return all(is_valid(value[name]) for name, is_valid in fields if name in value)

    return check
