"""Typed values of ``msgspec`` as messages of ``ipc``."""

import json
from collections.abc import Callable
from typing import Any

import msgspec


def as_json(message: msgspec.Struct) -> Any:
    """Return a message as a value of JSON."""
    return msgspec.to_builtins(message)


def reader(kind: Any) -> Callable[[bytes], Any]:
    """Return the function that reads a message of a type, or of one of several.

    It raises ``ValueError`` if a field is missing or has a different type, or it is too deep.
    """

    def read(data: bytes) -> Any:
        try:
            # Unlike msgspec, json reads lone surrogates: undecodable bytes of an argument.
            return msgspec.convert(json.loads(data), kind, str_keys=True)
        except RecursionError as error:
            raise ValueError(str(error)) from error

    return read
