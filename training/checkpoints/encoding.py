"""Encodes values of a state dict as plain data, for DCP and for other hosts.

A NumPy value, a set, an ``Enum`` or a tensor that consists of other tensors (e.g. in an 8-bit
optimizer) becomes a tuple that starts with a mark. DCP stores keys as strings: what it loses of
dictionaries is listed next to them.
"""

import io
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Container, Iterator, Mapping
from copy import deepcopy
from enum import Enum
from functools import partial
from importlib import import_module
from itertools import zip_longest
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import DTensor

Path = tuple[str | int, ...]
"""Keys of a value in a nested state dict, outermost first."""
KEYS = "ft_run_keys"
"""Key under which a state dict lists dictionaries that DCP does not preserve: non-string keys,
empty ones, and types. Without it, ``MultiStepLR``, which looks up numbers in a ``Counter``, would
silently never change the learning rate again."""
_WHOLE = "ft_run_whole"
"""If the state is not a dictionary, the only other key."""
_KINDS: dict[str, Any] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
_FACTORIES = {f"defaultdict.{of.__name__}": of for of in (int, float, str, list, dict, set)}
"""Kinds of ``defaultdict``, by their factory."""
_KINDS |= {kind: partial(defaultdict, of) for kind, of in _FACTORIES.items()}
_PLAIN = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None)))
_OF_TORCH = (torch.Tensor, torch.dtype, torch.device, torch.Size)
"""Together with ``_PLAIN``, the types that are stored unchanged."""
_LIKE_PLAIN = (str, bytes, int, float, complex, tuple, list)
_MARK = "\0ft_run"
_ARRAY, _SCALAR, _SET, _FROZENSET, _DICT, _ENUM, _GENERATOR, _KEY, _TENSOR, _SAVED = (
    f"{_MARK}.{kind}"
    for kind in (
        "array",
        "scalar",
        "set",
        "frozenset",
        "dict",
        "enum",
        "generator",
        "key",
        "tensor",
        "saved",
    )
)


def flatten(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested state dict, flattened by DCP."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=True)
    return dict(planner.state_dict)


def put(nested: dict[str, Any], path: Path, value: Any) -> None:
    """Set the value at a path like DCP's unflattening: numbers are list indexes."""
    place: Any = nested
    for key, following in zip(path, [*path[1:], None], strict=True):
        if isinstance(key, int):
            place.extend({} for _ in range(len(place), key + 1))  # DCP omits empty items
        present = place[key] if isinstance(key, int) else place.get(key)
        if following is None:
            place[key] = value
        elif not present:
            present = place[key] = [] if isinstance(following, int) else {}
        place = present


# --- keys ----------------------------------------------------------------------------------------


def with_keys(state: Any) -> Any:
    """Encode a state dict, and add a list of what DCP would lose, if anything."""
    found = [[list(path), *of] for path, *of in _lossy_dicts(state, ())]
    state = encode(state)
    if found and not isinstance(state, Mapping):
        return {_WHOLE: state, KEYS: [[[_WHOLE, *path], *of] for path, *of in found]}
    return {**state, KEYS: found} if found else state


def without_keys(state: Any) -> Any:
    """Undo ``with_keys`` after a state dict went through DCP."""
    if not isinstance(state, Mapping) or KEYS not in state:
        return decode(state)
    whole: dict[str, Any] = {"": {key: value for key, value in state.items() if key != KEYS}}
    for path, kind, keys in reversed(state[KEYS]):  # inner ones first: their paths are strings
        kept: Any = whole
        for key in ("", *path):
            kept = (dict(enumerate(kept)) if isinstance(key, int) else kept).get(key) or {}
        there = {_decode_key(key): kept[_text_of(key)] for key in keys}
        put(whole, ("", *path), _KINDS[kind](there))
    found = decode(whole[""])
    return found[_WHOLE] if isinstance(found, Mapping) and set(found) == {_WHOLE} else found


def _lossy_dicts(value: Any, path: Path) -> Iterator[tuple[Path, str, list[Any]]]:
    """Yield path, type and keys of each dictionary that DCP does not preserve."""
    if isinstance(value, Mapping):
        kind = _kind_of(value)
        if not value or kind != "dict" or not all(type(key) is str for key in value):
            yield path, kind, [_encode_key(key) for key in value]
        for key, inner in value.items():
            if isinstance(inner, Mapping | list):
                yield from _lossy_dicts(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if isinstance(inner, Mapping | list):
                yield from _lossy_dicts(inner, (*path, index))


def _kind_of(value: "Mapping[Any, Any]") -> str:
    """Return the type of a dictionary by name; "dict" if another process cannot create it."""
    if type(value) is defaultdict:
        kinds = (kind for kind, of in _FACTORIES.items() if of is value.default_factory)
        return next(kinds, "dict")
    name = type(value).__name__
    return name if _KINDS.get(name) is type(value) else "dict"


def _encode_key(key: Any) -> Any:
    """Return a key as plain data, with DCP's string for it if that is different."""
    encoded = encode(key, is_whole=True)
    if next(find_foreign(encoded, ""), None) is not None:
        return str(key)
    return key if encoded is key else (_KEY, encoded, str(key))


def _decode_key(key: Any) -> Any:
    return decode(key[1]) if _mark_of(key) == _KEY else key


def _text_of(key: Any) -> str:
    return str(key[2]) if _mark_of(key) == _KEY else str(key)


# --- values --------------------------------------------------------------------------------------


def encode(value: Any, *, is_whole: bool = False) -> Any:
    """Return a value as plain data; the same object if it is plain or cannot be encoded.

    ``is_whole``: whether DCP stores it as one value, whose dictionaries ``_lossy_dicts`` does not
    list.
    """
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value) if _is_composed(kind) or not _is_dense(value) else value
    if kind in _PLAIN or isinstance(value, _OF_TORCH):
        return value
    if kind in (list, tuple):
        if _PLAIN.issuperset(map(type, value)):
            return value
        inner = [encode(one, is_whole=is_whole or kind is tuple) for one in value]
        return value if all(map(_is, inner, value)) else kind(inner)
    if isinstance(value, Mapping):
        encoded = {key: encode(inner, is_whole=is_whole) for key, inner in value.items()}
        keys = [encode(key, is_whole=True) for key in value] if is_whole else []
        is_default = kind is defaultdict  # torch cannot load it
        if not all(map(_is, keys, value)) or (is_default and is_whole):
            return (_DICT, _kind_of(value), keys, [*encoded.values()])
        if is_default:
            return encoded
        if all(encoded[key] is inner for key, inner in value.items()):
            return value
        return _KINDS[_kind_of(value)](encoded)
    if kind in (set, frozenset):
        return (
            _SET if kind is set else _FROZENSET,
            sorted((encode(one, is_whole=True) for one in value), key=repr),
        )
    if isinstance(value, Enum):
        return (_ENUM, kind.__module__, kind.__qualname__, encode(value.value, is_whole=True))
    if kind is torch.Generator:
        return (_GENERATOR, str(value.device), value.get_state())
    return _encode_numpy(value)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_composed(kind: type) -> bool:
    """Return whether tensors of a class consist of other tensors, without own storage."""
    return hasattr(kind, "__tensor_flatten__") and not issubclass(kind, DTensor)


def _is_dense(value: torch.Tensor) -> bool:
    """Return whether a tensor's data is an array, which can overwrite its slot in a file."""
    is_array = value.layout is torch.strided and not value.is_nested
    return is_array and not value.is_quantized and not value.is_meta


def _encode_tensor(value: Any) -> Any:
    if not _is_composed(type(value)):
        data = io.BytesIO()
        torch.save(value.detach(), data)
        return (_SAVED, data.getvalue())
    names, about = value.__tensor_flatten__()
    parts = [(name, encode(getattr(value, name), is_whole=True)) for name in names]
    about = encode(about, is_whole=True)
    kind, size, stride = type(value), tuple(value.shape), tuple(value.stride())
    return (_TENSOR, kind.__module__, kind.__qualname__, parts, about, size, stride)


def _encode_numpy(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return value
    data = io.BytesIO()
    try:
        numpy.save(data, value, allow_pickle=False)
    except ValueError:  # objects
        return value
    return (_ARRAY if type(value) is numpy.ndarray else _SCALAR, data.getvalue())


def decode(value: Any) -> Any:
    """Undo ``encode``; return the same object if nothing in it was encoded.

    Raises:
        RuntimeError: If the class of an ``Enum`` or a tensor does not exist.
    """
    kind = type(value)
    if kind in (list, tuple):
        if mark := _mark_of(value):
            return _decode_marked(mark, value)
        if _PLAIN.issuperset(map(type, value)):
            return value
        inner = [decode(one) for one in value]
        return value if all(map(_is, inner, value)) else kind(inner)
    if isinstance(value, Mapping):
        decoded = {key: decode(inner) for key, inner in value.items()}
        if all(decoded[key] is inner for key, inner in value.items()):
            return value
        return _KINDS[_kind_of(value)](decoded)
    return value


def _mark_of(value: Any) -> str:
    is_marked = type(value) is tuple and value and type(value[0]) is str
    return value[0] if is_marked and value[0].startswith(_MARK) else ""


def _decode_marked(mark: str, value: Any) -> Any:
    if mark in (_ARRAY, _SCALAR):
        array = import_module("numpy").load(io.BytesIO(value[1]), allow_pickle=False)
        return array if mark == _ARRAY else array[()]
    if mark in (_SET, _FROZENSET):
        return (set if mark == _SET else frozenset)(map(decode, value[1]))
    if mark == _DICT:
        _, kind, keys, values = value
        return _KINDS[kind](dict(zip(map(decode, keys), map(decode, values), strict=True)))
    if mark == _GENERATOR:
        return torch.Generator(value[1]).set_state(value[2])
    if mark == _ENUM:
        _, module, name, plain = value
        return _class_of(module, name, Enum)(decode(plain))
    if mark == _SAVED:
        return torch.load(io.BytesIO(value[1]), weights_only=True)
    if mark == _TENSOR:
        _, module, name, parts, about, size, stride = value
        inner = {key: decode(part) for key, part in parts}
        found = _class_of(module, name, torch.Tensor)
        return found.__tensor_unflatten__(inner, decode(about), torch.Size(size), stride)
    return value


def _class_of(module: str, name: str, base: type) -> Any:
    """Return a class of an imported module only, because the name can come from another host."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise RuntimeError(f"the state has a {name} of module {module}, which does not exist")
    return found


def find_foreign(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each value, encoded or not, that other hosts cannot receive.

    ``path`` is that of the value itself, e.g. ``state['stats']``.
    """
    kind = type(value)
    if kind in (list, tuple):
        if not _PLAIN.issuperset(map(type, value)):
            for index, inner in enumerate(value):
                yield from find_foreign(inner, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from find_foreign(key, f"the key {key!r} of {path}")
            yield from find_foreign(inner, f"{path}[{key!r}]")
    elif kind not in _PLAIN and (_is_composed(kind) or not isinstance(value, _OF_TORCH)):
        encoded = encode(value, is_whole=True)
        if encoded is value:
            yield path, value
        else:
            yield from find_foreign(encoded, path)


def foreign_values(flat: Mapping[str, Any], plain: Container[str]) -> list[str]:
    """Return path and type of each value in a flat state dict that other hosts cannot receive.

    ``plain``: names of ``PlainValue`` objects.
    """
    found = []
    for key, value in flat.items():
        name, *rest = key.split(".")
        at = "" if name in plain else "".join(f"[{part!r}]" for part in rest)
        if name in plain and type(value) is tuple and len(value) == 1:
            (value,) = value
        wrong = find_foreign(value, f"state[{name!r}]{at}")
        found += [f"{path} ({type(one).__name__})" for path, one in wrong]
    return found


# --- plain values in the state -------------------------------------------------------------------


class PlainValue:
    """A dictionary or list that is restored in place: the script keeps the same object."""

    def __init__(self, name: str, value: "dict[Any, Any] | list[Any]") -> None:
        """Raise ``TypeError`` for values other than numbers, strings, tensors, and collections."""
        foreign = find_foreign(value, f"state[{name!r}]")
        wrong = next((found for found in foreign if not isinstance(found[1], _LIKE_PLAIN)), None)
        if wrong is not None:
            raise TypeError(
                f"invalid value of type {type(wrong[1]).__name__} for {wrong[0]}: expected "
                "numbers, strings, tensors, and dictionaries, lists and tuples of them; an object "
                "with state_dict() and load_state_dict() needs an entry of its own in the state"
            )
        self._value = value

    def state_dict(self) -> dict[str, Any]:
        """Return a copy in which tensors have no graph."""
        memo: dict[int, Any] = {}
        for tensor in _computed_tensors(self._value):
            memo[id(tensor)] = tensor.detach().clone()
        # DCP stores a tuple as one value, regardless of its content.
        return {"value": (deepcopy(self._value, memo),)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it, if it was saved."""
        if state:
            _restore(self._value, state["value"][0])


def _computed_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors with a graph, which ``deepcopy`` rejects."""
    if isinstance(value, torch.Tensor):
        if not value.is_leaf:
            yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _computed_tensors(inner)


def _restore(now: Any, saved: Any) -> Any:
    """Return a saved value; dictionaries, lists and trained tensors stay the same objects."""
    if isinstance(now, dict) and isinstance(saved, dict):
        restored = {key: _restore(now.get(key), inner) for key, inner in saved.items()}
        now.clear()
        now.update(restored)
        return now
    if isinstance(now, list) and isinstance(saved, list):
        now[:] = [_restore(*pair) for pair in zip_longest(now[: len(saved)], saved)]
        return now
    if isinstance(now, torch.Tensor) and isinstance(saved, torch.Tensor):
        is_trained = now.is_leaf and now.requires_grad  # an optimizer may hold it
        if is_trained and (now.shape, now.dtype) == (saved.shape, saved.dtype):
            with torch.no_grad():
                return now.copy_(saved)
    return saved
