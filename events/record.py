"""Events as JSON values: what ``--events`` writes.

``schema`` describes the objects.
"""

import enum
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from .event import Event

VERSION = 1
"""Of the schema. The rule for changes is in the docstring of the package."""

MASTER = "master"
"""What the records of ``ft-run master`` have as their node."""

Record: TypeAlias = Mapping[str, Any]
"""One event as a JSON object: the keys of ``ENVELOPE``, and the fields of the event."""

ENVELOPE = {
    "time": "string",
    "uptime_s": "number",
    "name": "string",
    "version": "integer",
    "severity": "string",
    "job": "string",
    "attempt": "integer",
    "node": "string",
    "round": "integer",
    "text": "string",
}
"""The keys that every record has, with their JSON types. ``round`` is a field of some events."""


def fields_of(event: Event) -> dict[str, Any]:
    """Return the fields of an event as JSON values."""
    return {name: json_value(getattr(event, name)) for name in event.__struct_fields__}


def json_value(value: object) -> Any:
    """Return a field's value as JSON has it.

    Members of enumerations become their names in lower case, values with fields become objects,
    and numbers that are not finite become null.
    """
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [json_value(item) for item in value]
    if isinstance(value, Struct):
        return {name: json_value(getattr(value, name)) for name in value.__struct_fields__}
    raise TypeError(f"invalid type {type(value).__name__} of a field: expected a value of JSON")
