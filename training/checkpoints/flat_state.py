"""The flat state dict of a script's objects at each step, with cached DCP names."""

import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .copying import local
from .encoding import flatten, with_keys
from .optimizer_state import OptimizerState, parameters_of
from .state import State, names_in


class FlatState:
    """A faster ``flatten(state.collect())``; also finds the tensors that only optimizers change.

    DCP looks up each name in the tree of modules, which takes 10 us per tensor. Here names are
    cached while objects, parameters and the keys of their state dicts stay the same. Each lookup
    compares the results with DCP's; an object for which they differ is always collected by DCP.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._shortcuts: dict[str, _Module | _Optimizer | None] = {}
        """Cached names by object; None if DCP always collects it."""
        self._count = -1
        self.late: frozenset[str] = frozenset()
        """Keys of the parameters of optimizers and of their state."""

    def collect(self) -> dict[str, Any]:
        """Return the flat state dict, which shares the memory of the objects."""
        found = self._collect_cached() if self._shortcuts else None
        if found is None:
            found = self._look_up()
        if len(found) != self._count:
            self._count, self.late = len(found), self._changed_by_optimizers(found)
        return found

    def _collect_cached(self) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        nested: dict[str, Any] = {}
        for name, shortcut in self._shortcuts.items():
            if shortcut is None:
                nested.update(self._state.collect(only=frozenset((name,))))
                continue
            mine = shortcut.collect()
            if mine is None:
                return None
            found.update(mine[0])
            nested[name] = mine[1]
        found.update(flatten(nested))
        return found

    def _look_up(self) -> dict[str, Any]:
        nested = self._state.collect()
        self._shortcuts, self._count = {}, -1
        for name, value in self._state.objects.items():
            shortcut: _Module | _Optimizer | None = None
            if isinstance(value, nn.Module):
                shortcut = _Module(name, value, nested[name])
            elif name in self._state.optimizers:
                shortcut = _Optimizer(name, self._state.optimizers[name])
            mine = shortcut.collect() if shortcut is not None else None
            is_right = mine is not None and _is_same_dict(
                mine[0] | flatten({name: mine[1]}), flatten({name: nested[name]})
            )
            self._shortcuts[name] = shortcut if is_right else None
        return flatten(nested)

    def _changed_by_optimizers(self, flat: Mapping[str, Any]) -> frozenset[str]:
        objects = self._state.objects
        optimizers = {name: o for name, o in objects.items() if isinstance(o, Optimizer)}
        parameters = {_memory_of(p) for o in optimizers.values() for p in parameters_of(o)}
        found = set()
        for key, value in flat.items():
            name = key.partition(".")[0]
            if isinstance(value, torch.Tensor):
                is_state = name in optimizers and key.startswith(f"{name}.state.")
                if is_state or _memory_of(value) in parameters:
                    found.add(key)
        return frozenset(found)


class _Module:
    """The state dict of a module with cached DCP names."""

    def __init__(self, name: str, module: nn.Module, expected: Mapping[str, Any]) -> None:
        self._name, self._module = name, module
        names = names_in(module, expected)
        self._keys, self._names = list(names), list(names.values())

    def collect(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return tensors by flat key, and others nested; None if the cache is outdated."""
        state = self._module.state_dict()
        if list(state) != self._keys:
            return None
        tensors: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, value in zip(self._names, state.values(), strict=True):
            if isinstance(value, torch.Tensor):
                tensors[f"{self._name}.{name}"] = value
            else:
                others[name] = value
        return tensors, with_keys(others) if others else others


class _Optimizer:
    """The state dict of an optimizer, whose tensors are flattened without DCP."""

    def __init__(self, name: str, optimizer: OptimizerState) -> None:
        self._name, self._optimizer = name, optimizer

    def collect(self) -> tuple[dict[str, Any], dict[str, Any]]:
        whole = with_keys(self._optimizer.collect())
        tensors: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, values in whole["state"].items():
            if not isinstance(values, dict):
                others[name] = values
                continue
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{self._name}.state.{name}.{key}"] = value
                else:
                    others.setdefault(name, {})[key] = value
        return tensors, {**whole, "state": others}


def _memory_of(tensor: Any) -> tuple[int, torch.device]:
    part = local(tensor)
    return part.data_ptr(), part.device


def _is_same_dict(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one.keys() != other.keys():
        return False
    for key, value in one.items():
        expected = other[key]
        if type(value) is not type(expected):
            return False
        if isinstance(value, torch.Tensor):
            if (_memory_of(value), value.shape, value.dtype) != (
                _memory_of(expected),
                expected.shape,
                expected.dtype,
            ):
                return False
        elif pickle.dumps(value) != pickle.dumps(expected):
            return False
    return True
