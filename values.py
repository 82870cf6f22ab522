"""Dataclasses whose methods are made when they are first used.

``dataclasses`` writes and compiles five methods for each class at import: 0.4 ms a class. The agent
of a plain run loads some ninety of them and makes instances of few: that was 40 of the 145 ms of
processor time of ``ft-run --standalone --no-python true``, some 5 ms are left. Here ``__init__``,
``__eq__`` and ``__hash__`` are compiled when a class first needs each, and the rest is shared. Then
an instance is made in less time than one of ``dataclasses``, because the slots are set directly,
and compared in the same.

For a type checker these are ``dataclass``, ``field`` and ``replace`` of the standard library, of
which they know what this project uses: classes with slots, frozen or not, that have no base class
or one, whose instances have slots only; defaults, ``default_factory``, ``compare=False`` and
``metadata``. ``__post_init__`` and the like are not known. The functions of ``dataclasses``
(``fields``, ``asdict``, ``is_dataclass``) take such a class too.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

T = TypeVar("T")


class _Missing:
    """Stands for a default that is not there."""


_MISSING: Any = _Missing()


class _Part:
    """What ``field`` says of a field."""

    __slots__ = ("compare", "default", "default_factory", "metadata")

    def __init__(
        self, default: Any, default_factory: Any, compare: bool, metadata: Mapping[str, Any]
    ) -> None:
        self.default = default
        self.default_factory = default_factory
        self.compare = compare
        self.metadata = metadata


class _Fields:
    """``__dataclass_fields__``: made by ``dataclasses`` when it is first asked for."""

    def __get__(self, instance: object, owner: type) -> Mapping[str, Any]:
        import dataclasses

        def described(part: _Part) -> Any:
            given = {"default": part.default, "default_factory": part.default_factory}
            known = {name: value for name, value in given.items() if value is not _MISSING}
            return dataclasses.field(**known, compare=part.compare, metadata=part.metadata)

        hints: dict[str, Any] = {}
        for ancestor in reversed(owner.__mro__[:-1]):
            hints |= ancestor.__annotations__
        parts = _parts(owner)
        same = [(name, hints[name], described(part)) for name, part in parts.items()]
        alike: Any = dataclasses.make_dataclass("Alike", same)
        found: Mapping[str, Any] = alike.__dataclass_fields__
        kind: Any = owner
        kind.__dataclass_fields__ = found
        return found


_FIELDS = _Fields()


def _dataclass(*, slots: bool, frozen: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator as ``dataclasses.dataclass`` does.

    Raises:
        TypeError: the class is none of those that this module knows.
    """

    def decorate(plain: type[T]) -> type[T]:
        base, *others = plain.__bases__
        if not slots or others or base.__dictoffset__ or hasattr(plain, "__post_init__"):
            raise TypeError(f"{plain.__qualname__} is a case for the standard dataclasses")
        own = dict(plain.__dict__)
        parts = {name: _part(own.pop(name, _MISSING)) for name in plain.__annotations__}
        inherited = getattr(base, "_dataclass_parts", {})
        for name in ("__dict__", "__weakref__"):
            own.pop(name, None)
        methods = _METHODS | (_FROZEN if frozen else _CHANGING)
        about: dict[str, Any] = {
            "__slots__": tuple(parts),
            "__match_args__": (*inherited, *parts),
            "__qualname__": plain.__qualname__,
        }
        about |= {"__dataclass_fields__": _FIELDS, "_dataclass_parts": inherited | parts}
        members = {**methods, **own, **about}
        return type.__new__(type(plain), plain.__name__, (base,), members)

    return decorate


def _field(
    *,
    default: Any = _MISSING,
    default_factory: Any = _MISSING,
    compare: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Describe a field as ``dataclasses.field`` does."""
    return _Part(default, default_factory, compare, metadata or {})


def _replace(value: T, /, **changes: Any) -> T:
    """Return a copy with other values in some fields, as ``dataclasses.replace`` does."""
    for name in names(type(value)):
        if name not in changes:
            changes[name] = getattr(value, name)
    return type(value)(**changes)


def is_value(kind: object) -> bool:
    """Tell whether ``kind`` is a class that ``dataclass`` of this module made."""
    return isinstance(kind, type) and "_dataclass_parts" in kind.__dict__


def names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a class, in order; one of ``dataclasses`` will do too."""
    found: tuple[str, ...] = cast(Any, kind).__match_args__
    return found


def metadata(kind: type, name: str) -> Mapping[str, Any]:
    """Return what ``field`` says of a field besides."""
    return _parts(kind)[name].metadata


def prepare(kind: type) -> None:
    """Compile ``__init__`` of a class now, where the first instance must not wait for it."""
    made: Any = kind
    if made.__init__ is _first_init:
        made.__init__ = _init(kind)


def _parts(kind: type) -> dict[str, _Part]:
    parts: dict[str, _Part] = cast(Any, kind)._dataclass_parts
    return parts


def _part(default: Any) -> _Part:
    return default if isinstance(default, _Part) else _field(default=default)


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stand in for ``__init__`` until the first instance is made."""
    kind: Any = type(self)
    kind.__init__ = _init(kind)
    kind.__init__(self, *args, **kwargs)


def _first_eq(self: Any, other: object) -> Any:
    """Stand in for ``__eq__`` until the first comparison."""
    kind: Any = type(self)
    kind.__eq__ = _compiled(
        kind,
        "__eq__(self, other)",
        " if other.__class__ is not self.__class__: return NotImplemented\n"
        f" return {_compared(kind, 'self')} == {_compared(kind, 'other')}",
    )
    return kind.__eq__(self, other)


def _first_hash(self: Any) -> int:
    """Stand in for ``__hash__`` until the first one is asked for."""
    kind: Any = type(self)
    kind.__hash__ = _compiled(kind, "__hash__(self)", f" return hash({_compared(kind, 'self')})")
    return hash(self)


def _compared(kind: type, instance: str) -> str:
    """Return the tuple of what two instances are compared by, as source."""
    compared = (name for name, part in _parts(kind).items() if part.compare)
    return f"({''.join(f'{instance}.{name}, ' for name in compared)})"


def _init(kind: type) -> Callable[..., None]:
    """Compile the ``__init__`` of a class: it sets each slot, past ``__setattr__``."""
    parameters, lines = ["self"], []
    scope: dict[str, Any] = {"_missing": _MISSING}
    for name, part in _parts(kind).items():
        scope[f"_set_{name}"] = getattr(kind, name).__set__
        given = name
        if part.default_factory is not _MISSING:
            scope[f"_make_{name}"] = part.default_factory
            parameters.append(f"{name}=_missing")
            given = f"_make_{name}() if {name} is _missing else {name}"
        elif part.default is not _MISSING:
            scope[f"_default_{name}"] = part.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        lines.append(f" _set_{name}(self, {given})\n")
    body = "".join(lines) or " pass"
    return _compiled(kind, f"__init__({', '.join(parameters)})", body, scope)


def _compiled(
    kind: type, head: str, body: str, scope: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a method; of what a class says, only the names of its fields are in the source."""
    known = scope or {}
    exec(f"def {head}:\n{body}", known)  # noqa: S102 - what dataclasses does too
    name = head.partition("(")[0]
    method: Callable[..., Any] = known[name]
    method.__qualname__ = f"{kind.__qualname__}.{name}"
    return method


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names(type(self)))
    return f"{type(self).__qualname__}({values})"


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, name) for name in names(type(self))]


def _setstate(self: Any, state: list[Any]) -> None:
    for name, value in zip(names(type(self)), state, strict=True):
        object.__setattr__(self, name, value)


def _setattr(self: object, name: str, value: object) -> None:  # noqa: ARG001 - as object's
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: object, name: str) -> None:  # noqa: ARG001 - as object's
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS: dict[str, Any] = {
    "__init__": _first_init,
    "__eq__": _first_eq,
    "__repr__": _repr,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}
_FROZEN: dict[str, Any] = {
    "__hash__": _first_hash,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
}
_CHANGING: dict[str, Any] = {"__hash__": None}


class _Values(type):
    """The metaclass of a family of frozen dataclasses, none of which needs the decorator."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        plain: Any = super().__new__(cls, name, bases, body)
        return _dataclass(frozen=True, slots=True)(plain)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import dataclass_transform

    @dataclass_transform(frozen_default=True)
    class Values(type):
        """As ``_Values``."""
else:
    dataclass, field, replace, Values = _dataclass, _field, _replace, _Values
