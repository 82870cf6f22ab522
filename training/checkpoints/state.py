"""Collects the state of a script's objects, and loads it back into them."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer
from torch.utils.data import Sampler

from ..data.batches import ElasticBatches
from .containers import LayoutMismatchError
from .late_copy import local
from .plain_value import PlainValue
from .rank_state import RESERVED
from .snapshot_file import SnapshotFile

_LENIENT = dcp.StateDictOptions(strict=False)
"""Not strict: an optimizer has no state for a parameter that never had a gradient."""
KEYS = "ft_run_keys"
"""The key under which a state dict lists what DCP loses: dictionaries with keys that are not
strings, empty ones, and their types. Without it, ``MultiStepLR``, which looks up numbers in a
``Counter``, would silently never change the rate again."""
_KINDS: dict[str, Any] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
_PLAIN = (str, int, float, type(None))
"""Keys of other types become strings: data from other hosts may contain plain types only."""
_SAMPLER_HINT = "; a sampler of torch does not save its position, ElasticBatches does"
_Path = tuple[str | int, ...]
Saved = tuple[_Path, str, Sequence[int]]
"""Of a value: its path in the nested state dict, its type (e.g. ``float32``; empty: not a tensor)
and its shape."""

Select = Callable[[dict[str, Any]], Container[str]]


class State:
    """Objects with ``state_dict`` and ``load_state_dict``, by name."""

    def __init__(
        self, objects: Mapping[str, Any], hidden: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Check the objects.

        Args:
            objects: of the script; also dictionaries and lists of plain values.
            hidden: objects of ft-run, with names that begin with ``RESERVED``.

        Raises:
            TypeError: one lacks these methods, or uses FSDP1, whose state has no DTensors.
            ValueError: there are no objects, or a name is invalid.
        """
        if not objects:
            raise ValueError(
                "invalid value {} for state: expected at least one object, e.g. {'model': model}"
            )
        for name, value in objects.items():
            if not isinstance(name, str) or not name or "." in name or name.startswith(RESERVED):
                raise ValueError(
                    f"invalid name {name!r} in state: expected a non-empty string without a dot, "
                    f"which does not begin with {RESERVED}"
                )
            if isinstance(value, dict | list):
                continue
            if not all(
                callable(getattr(value, m, None)) for m in ("state_dict", "load_state_dict")
            ):
                raise TypeError(
                    f"invalid value of type {type(value).__name__} for state[{name!r}]: expected "
                    f"an object with state_dict() and load_state_dict(), or a dictionary or list "
                    f"of plain values{_SAMPLER_HINT if isinstance(value, Sampler) else ''}"
                )
            if isinstance(value, nn.Module) and any(
                isinstance(part, FullyShardedDataParallel) for part in value.modules()
            ):
                raise TypeError(
                    f"invalid value for state[{name!r}]: FullyShardedDataParallel (FSDP1) is not "
                    "supported: expected torch.distributed.fsdp.fully_shard"
                )
        objects = {
            name: PlainValue(name, value) if isinstance(value, dict | list) else value
            for name, value in objects.items()
        }
        self.objects = {**objects, **hidden}
        self._initialised: list[Optimizer] = []
        """Optimizers whose state was created only to load into it."""
        modules = {name: value for name, value in objects.items() if isinstance(value, nn.Module)}
        candidates = [*modules.values(), _combined(modules)]
        self.owners: dict[str, nn.Module] = {}
        """The module whose parameters an optimizer optimizes, by the optimizer's name."""
        for name, value in objects.items():
            if isinstance(value, Optimizer) and _needs_no_closure(value):
                mine = set(map(id, parameters_of(value)))
                for module in candidates:
                    if mine <= set(map(id, module.parameters())):
                        self.owners[name] = module
                        break

    def collect(
        self, *, initialised: frozenset[str] = frozenset(), only: frozenset[str] | None = None
    ) -> dict[str, Any]:
        """Return the nested state dict, which shares the memory of the objects.

        Args:
            initialised: optimizers whose state is created first, to load into it.
            only: collect only the objects with these names; None: all.
        """
        found: dict[str, Any] = {}
        for name, value in self.objects.items():
            if only is not None and name not in only:
                continue
            if isinstance(value, nn.Module):
                found[name] = dcp.get_model_state_dict(value)
            elif name not in self.owners:
                found[name] = _with_keys(value.state_dict())
            elif name in initialised:
                with _without_gradients(value):
                    found[name] = dcp.get_optimizer_state_dict(self.owners[name], value)
            else:
                with _without_step(value):
                    found[name] = dcp.get_optimizer_state_dict(self.owners[name], value)
        return found

    def apply(self, state: Mapping[str, Any], skipped: Container[str] = ()) -> None:
        """Load a nested state dict into the objects, without some."""
        self._initialised.clear()
        for name, value in self.objects.items():
            if name in skipped:
                continue
            mine = state.get(name, {})
            if isinstance(value, nn.Module):
                dcp.set_model_state_dict(value, mine)
            elif name in self.owners:
                mine = {"state": {}, "param_groups": [], **mine}
                dcp.set_optimizer_state_dict(
                    self.owners[name], value, optim_state_dict=mine, options=_LENIENT
                )
            else:
                value.load_state_dict(_without_keys(mine))

    def resume(self, step: int) -> None:
        """Let arguments of batches that have changed hold from a step on."""
        for value in self.objects.values():
            if isinstance(value, ElasticBatches):
                value.resume(step)

    def data_rank(self, rank: int) -> int:
        """Return the rank of data parallelism, which a mesh of batches in the state may know."""
        for value in self.objects.values():
            if isinstance(value, ElasticBatches):
                return value.rank
        return rank

    def forget_initialised(self) -> None:
        """Clear the state that was created only to load into it."""
        for optimizer in self._initialised:
            optimizer.state.clear()
        self._initialised.clear()

    def prepare(self, saved: Sequence[Saved]) -> dict[str, Any]:
        """Return a nested state dict to load into, of modules and their optimizers only."""
        those = frozenset(path[0] for path, *_ in saved if path[1:2] == ("state",))
        those &= self.owners.keys()
        for name in map(str, those):
            if not self.objects[name].state:
                self._initialised.append(self.objects[name])
                self._create_state(name, saved)
        # The state dict of another object may cost much: a StatefulDataLoader starts its workers.
        of_torch = frozenset(filter(self._is_of_torch, self.objects))
        return self.collect(initialised=frozenset(map(str, those)), only=of_torch)

    def _create_state(self, name: str, saved: Sequence[Saved]) -> None:
        """Create the state of an optimizer that has none, to load into it.

        DCP would let the optimizer step, which is slow and not always possible (``SparseAdam``). It
        still does if parameters are sharded, or the saved optimizer is of another kind.
        """
        optimizer = self.objects[name]
        with _without_step(optimizer):
            found: Any = dcp.get_optimizer_state_dict(self.owners[name], optimizer)
        groups = found["param_groups"]
        mine = flatten({name: {"param_groups": groups}}).keys()
        theirs = {
            ".".join(map(str, path)) for path, *_ in saved if path[:2] == (name, "param_groups")
        }
        if mine != theirs:
            return
        names = [key for group in groups for key in group["params"]]
        parameters = dict(zip(names, parameters_of(optimizer), strict=True))
        items = [item for item in saved if item[0][:2] == (name, "state")]
        if any(
            len(path) != 4 or type(parameters.get(path[2])) is not nn.Parameter
            for path, *_ in items
        ):
            return
        for path, dtype, shape in items:
            parameter = parameters[path[2]]
            # As in torch's load_state_dict, which would copy to the device what is elsewhere.
            device = "cpu" if path[3] == "step" else parameter.device
            kind = getattr(torch, dtype) if dtype else None
            value = torch.empty(shape, dtype=kind, device=device) if dtype else None
            optimizer.state[parameter][path[3]] = value

    def _is_of_torch(self, name: str) -> bool:
        return name in self.owners or isinstance(self.objects[name], nn.Module)

    @property
    def others(self) -> frozenset[str]:
        """Names of the objects that are neither modules nor their optimizers."""
        return frozenset(name for name in self.objects if not self._is_of_torch(name))

    def load(self, file: SnapshotFile, *, is_trusted: bool = True) -> "Loading":
        """Check a snapshot against the objects; ``Loading.finish`` then loads it.

        Raises:
            LayoutMismatchError: it belongs to other objects.
        """
        saved = {item.key: item for item in file.items}
        mine = flatten(self.prepare([(item.path, item.dtype, item.shape) for item in file.items]))
        for key, value in mine.items():
            item = saved.get(key)
            if isinstance(value, torch.Tensor):
                part = local(value)
                found = (item.dtype, item.shape) if item is not None else None
                if found != (str(part.dtype).removeprefix("torch."), tuple(part.shape)):
                    there = f"{found[0]} {list(found[1])}" if found is not None else "missing"
                    now = f"{part.dtype} {list(part.shape)}".removeprefix("torch.")
                    raise LayoutMismatchError(
                        f"{key} is {there} in the snapshot, {now} in the script"
                    )
        values: dict[str, Any] = {}
        for index, item in enumerate(file.items):
            if str(item.path[0]).startswith(RESERVED) and item.path[0] not in self.objects:
                continue
            if item.path[0] not in self.objects:
                raise LayoutMismatchError(f"{item.key} is in the snapshot, but not in the script")
            if not item.dtype:
                values[item.key] = file.read(index, is_trusted=is_trusted)
            elif self._is_of_torch(str(item.path[0])) and item.key not in mine:
                raise LayoutMismatchError(f"{item.key} is in the snapshot, but not in the script")
        return Loading(self, file, mine, values)


class Loading:
    """A snapshot that matches the objects."""

    def __init__(
        self, state: State, file: SnapshotFile, mine: dict[str, Any], values: dict[str, Any]
    ) -> None:
        self._state, self._file, self._mine, self._values = state, file, mine, values

    @torch.no_grad()
    def finish(self, select: Select = lambda _: ()) -> None:
        """Load the snapshot into the objects.

        Args:
            select: may replace values, and returns the names of objects to leave out.
        """
        nested: dict[str, Any] = {}
        for index, item in enumerate(self._file.items):
            value = self._values.get(item.key)
            if item.dtype and item.key in self._mine:
                value = self._mine[item.key]
                local(value).copy_(self._file.read(index))
            elif item.dtype:
                value = self._file.read(index).clone()
            put(nested, item.path, value)
        self._state.apply(nested, select(nested))


def flatten(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested state dict, flattened by DCP."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=True)
    return dict(planner.state_dict)


def put(nested: dict[str, Any], path: _Path, value: Any) -> None:
    """Set the value at a path, as DCP unflattens: numbers are indexes of lists."""
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


def _with_keys(state: Any) -> Any:
    """Return a state dict with a list of what DCP would lose, if anything."""
    found = [[list(path), *of] for path, *of in _lossy_dicts(state, ())]
    return {**state, KEYS: found} if found else state


def _without_keys(state: Any) -> Any:
    """Undo ``_with_keys`` after a state dict went through DCP."""
    if not isinstance(state, Mapping) or KEYS not in state:
        return state
    whole: dict[str, Any] = {"": {key: value for key, value in state.items() if key != KEYS}}
    for path, kind, keys in reversed(state[KEYS]):  # inner ones first: their paths are strings
        kept: Any = whole
        for key in ("", *path):
            kept = (dict(enumerate(kept)) if isinstance(key, int) else kept).get(key) or {}
        put(whole, ("", *path), _KINDS[kind]({key: kept[str(key)] for key in keys}))
    return whole[""]


def _lossy_dicts(value: Any, path: _Path) -> Iterator[tuple[_Path, str, list[Any]]]:
    """Yield path, type and keys of each dictionary that DCP does not preserve."""
    if isinstance(value, Mapping):
        kind = type(value).__name__ if type(value) in _KINDS.values() else "dict"
        if not value or kind != "dict" or not all(isinstance(key, str) for key in value):
            yield path, kind, [key if isinstance(key, _PLAIN) else str(key) for key in value]
        for key, inner in value.items():
            yield from _lossy_dicts(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _lossy_dicts(inner, (*path, index))


def _combined(modules: Mapping[str, nn.Module]) -> nn.Module:
    """Return one module with the parameters of several, for optimizers of several modules."""
    whole = nn.Module()
    for name, module in modules.items():
        if not hasattr(whole, name):
            whole.add_module(name, module)
    return whole


def _needs_no_closure(optimizer: Optimizer) -> bool:
    """Return whether ``step`` works without a closure (LBFGS needs one): DCP calls it to load."""
    closure = signature(optimizer.step).parameters.get("closure")
    return closure is None or closure.default is not closure.empty


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """Return the parameters of all groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@contextmanager
def _without_step(optimizer: Optimizer) -> Iterator[None]:
    """Keep DCP from calling ``step`` to create the state of an optimizer: Adam counts steps."""
    parameters = parameters_of(optimizer)
    if optimizer.state or any(p.grad is not None for p in parameters):
        yield
        return
    first = next((p for p in parameters if p.requires_grad), None)
    if first is not None:
        first.grad = torch.zeros_like(first)
    try:
        yield
    finally:
        if first is not None:
            first.grad = None


@contextmanager
def _without_gradients(optimizer: Optimizer) -> Iterator[None]:
    """Make DCP create the state of an optimizer, which it does only without gradients."""
    parameters = parameters_of(optimizer)
    gradients = [p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
