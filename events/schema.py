"""The JSON schema of events, made from their classes.

The agent does not load this module: it is for documentation, tests and ``ft-run report``.
"""

import ast
import enum
import functools
import importlib
import inspect
import typing
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any

import msgspec

from .event import Event, RoundEvent
from .master import MasterEvent
from .record import ENVELOPE, VERSION

MODULES = (
    *("node", "workers", "preload", "output", "metrics", "checks", "checkpoints"),
    *("tuning", "master", "event"),
)
"""The modules with events, in the order of the reference."""
_FAMILIES = (Event, RoundEvent, MasterEvent)
_SIMPLE = {bool: "boolean", int: "integer", str: "string"}


def event_classes() -> Iterator[type[Event]]:
    """Return the classes of all events, by module and in the order of the source."""
    for name in MODULES:
        module = importlib.import_module(f"{__package__}.{name}")
        for kind in vars(module).values():
            is_event = isinstance(kind, type) and issubclass(kind, Event) and kind not in _FAMILIES
            if is_event and kind.__module__ == module.__name__:
                yield kind


def json_schema() -> dict[str, Any]:
    """Return the schema of a line, as JSON Schema 2020-12."""
    kinds = list(event_classes())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Events of ft-run, version {VERSION}",
        "description": "A line of ft-run --events. Readers ignore unknown events and fields.",
        "type": "object",
        "properties": {
            **{key: {"type": kind} for key, kind in ENVELOPE.items()},
            "time": {"type": "string", "format": "date-time"},
            "version": {"const": VERSION},
            "severity": {"enum": ["debug", "info", "warning", "error"]},
            "round": {"type": ["integer", "null"]},
        },
        "required": list(ENVELOPE),
        "allOf": [_if_named(kind.name) for kind in kinds],
        "$defs": {kind.name: _of_class(kind) | _named(kind) for kind in kinds},
    }


def documented_fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings of the fields of a class; empty for a field that has none."""
    found: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__[: kind.__mro__.index(msgspec.Struct)]):
        body = _bodies(ancestor.__module__)[ancestor.__name__]
        for field, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = ""
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    text = _plain(str(following.value.value))
                found[field.target.id] = text
    return {name: found[name] for name in kind.__struct_fields__}


# --- the schema ------------------------------------------------------------------------------


@functools.cache
def _bodies(module: str) -> dict[str, list[ast.stmt]]:
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _if_named(name: str) -> dict[str, Any]:
    """Return the condition for an event; one with an unknown name is valid."""
    is_named = {"properties": {"name": {"const": name}}}
    return {"if": is_named, "then": {"$ref": f"#/$defs/{name}"}}


def _named(kind: type[Event]) -> dict[str, Any]:
    """Return the parts of an event's schema that an object in a field does not have."""
    about = _plain(inspect.getdoc(kind) or "")
    properties = {"name": {"const": kind.name}, **_of_class(kind)["properties"]}
    required = [name for name in _required(kind) if name not in ENVELOPE]
    return {"description": about, "properties": properties, "required": ["name", *required]}


def _of_class(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints, meanings = typing.get_type_hints(kind), documented_fields(kind)
    properties = {}
    for name in kind.__struct_fields__:
        about = {"description": meanings[name]} if meanings[name] else {}
        properties[name] = _of_type(hints[name]) | about
    return {"type": "object", "properties": properties, "required": _required(kind)}


def _required(kind: type[msgspec.Struct]) -> list[str]:
    """Return the fields without a default: the others are missing in files of earlier releases."""
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def _of_type(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (UnionType, typing.Union):
        return {"anyOf": [_of_type(argument) for argument in arguments]}
    if hint is NoneType:
        return {"type": "null"}
    if hint is Any:
        return {"type": ["number", "string", "boolean"]}
    if hint is float:
        return {"type": ["number", "null"]}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if origin is tuple:
        return {"type": "array", "items": _of_type(arguments[0])}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of_type(arguments[1])}
    if issubclass(hint, enum.Enum):
        return {"enum": [member.name.lower() for member in hint]}
    return _of_class(hint)


def _plain(docstring: str) -> str:
    return " ".join(docstring.split()).replace("``", "`")
