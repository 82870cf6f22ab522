"""Collects the state of a script's objects, and loads it back into them."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import Sampler

from ..data.batches import ElasticBatches
from ..ranks import Ranks
from ..worker.log import log
from .checkpoint_files import LayoutMismatchError
from .copying import local
from .encoding import KEYS, PlainValue, encode, flatten, put, with_keys, without_keys
from .kinds import SAME, check_modules, find_kinds
from .optimizer_state import (
    OptimizerState,
    Path,
    Saved,
    is_standard,
    load_exactly,
    parameters_of,
)
from .rank_state import RESERVED
from .snapshot_file import SnapshotFile

_EXTRA = "_extra_state"
"""Suffix of the keys of ``get_extra_state``, whose values can change in any way."""
_SAMPLER_HINT = "; a sampler of torch does not save its position, ElasticBatches does"
Select = Callable[[dict[str, Any]], Container[str]]


class State:
    """Objects with ``state_dict`` and ``load_state_dict``, by name."""

    def __init__(
        self, objects: Mapping[str, Any], hidden: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Check the objects; names of ``hidden`` ones start with ``RESERVED``.

        Raises:
            TypeError: If an object lacks these methods, or uses FSDP1, whose state has no DTensors.
            ValueError: If there are no objects, or a name is invalid.
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
            if any(of.__name__ == "ZeroRedundancyOptimizer" for of in type(value).__mro__):
                raise TypeError(
                    f"invalid value for state[{name!r}]: ZeroRedundancyOptimizer, whose state is "
                    "complete only on the rank that consolidates it, is not supported: expected "
                    "torch.distributed.fsdp.fully_shard, or a plain optimizer"
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
        self.kinds = SAME
        """Which objects are local to each rank."""
        modules = {name: value for name, value in objects.items() if isinstance(value, nn.Module)}
        candidates = [*modules.values(), _combined(modules)]
        self.optimizers: dict[str, OptimizerState] = {}
        """Optimizers of the parameters of modules in the state, by name."""
        for name, value in objects.items():
            if isinstance(value, Optimizer) and _needs_no_closure(value) and is_standard(value):
                mine = set(map(id, parameters_of(value)))
                for module in candidates:
                    if mine <= set(map(id, module.parameters())):
                        self.optimizers[name] = OptimizerState(name, value, module)
                        break

    def collect(self, *, only: frozenset[str] | None = None) -> dict[str, Any]:
        """Return the nested state dict of all or some objects, whose memory it shares."""
        found: dict[str, Any] = {}
        for name, value in self.objects.items():
            if only is not None and name not in only:
                continue
            if isinstance(value, nn.Module):
                found[name] = with_keys({**dcp.get_model_state_dict(value)})
            elif name in self.optimizers:
                found[name] = with_keys(self.optimizers[name].collect())
            else:
                found[name] = with_keys(value.state_dict())
        return found

    def apply(self, state: Mapping[str, Any], skipped: Container[str] = ()) -> None:
        """Load a nested state dict into the objects, except for ``skipped``."""
        for name, value in self.objects.items():
            if name in skipped:
                continue
            mine = without_keys(state.get(name, {}))
            if isinstance(value, nn.Module):
                _load_module(value, mine)
            elif name in self.optimizers:
                self.optimizers[name].load(mine)
            elif isinstance(value, Optimizer) and is_standard(value):
                load_exactly(value, mine)
            else:
                value.load_state_dict(mine)

    def resume(self, step: int) -> None:
        """Apply changed arguments of batches from a step on."""
        for optimizer in self.optimizers.values():
            optimizer.begin()
        for value in self.objects.values():
            if isinstance(value, ElasticBatches):
                value.resume(step)

    def warn_of_new_groups(self, step: int, *, is_logging: bool) -> None:
        """Log which optimizers have received parameters since the last call."""
        for name, optimizer in self.optimizers.items():
            if optimizer.has_grown() and is_logging:
                log(
                    f"{name!r} has got parameters in step {step}: a restart cannot restore them; "
                    "create all parameter groups at the start (with lr 0, or frozen, until they "
                    "are trained)"
                )

    def data_rank(self, rank: int) -> int:
        """Return the data-parallel rank, from the mesh of batches in the state if they have one."""
        for value in self.objects.values():
            if isinstance(value, ElasticBatches):
                return value.rank
        return rank

    def check_groups(self, nested: Mapping[str, Any]) -> None:
        """Raise ``ParameterGroupsError`` if saved parameter groups differ from the script's."""
        for name, optimizer in self.optimizers.items():
            saved = nested.get(name, {})
            groups = saved.get("param_groups", [])
            for path, *_ in saved.get(KEYS, []):
                if path[0] == "param_groups" and len(path) == 3:  # may be empty, so not saved
                    groups[path[1]].setdefault(path[2], {})
            optimizer.check_groups(groups)

    def prepare(self, saved: Sequence[Saved], *, is_local: bool) -> dict[str, Any]:
        """Return a flat state dict to load into: the tensors of modules and their optimizers.

        ``is_local``: whether the shapes of sharded tensors are those of this rank's parts.

        Raises:
            LayoutMismatchError: If a value was saved that the script does not have.
        """
        # Other objects' state dicts can be expensive: a StatefulDataLoader starts its workers.
        modules = {n for n, value in self.objects.items() if isinstance(value, nn.Module)}
        nested = self.collect(only=frozenset(modules))
        extra = {name: {k: v for k, v in nested[name].items() if _is_extra(k)} for name in modules}
        found = flatten(
            {n: {k: v for k, v in nested[n].items() if not _is_extra(k)} for n in modules}
        )
        for name, optimizer in self.optimizers.items():
            mine = [(path[1:], dtype, shape) for path, dtype, shape in saved if path[0] == name]
            for path, value in optimizer.prepare(mine, is_local=is_local).items():
                found[".".join(map(str, (name, *path)))] = value
        for path, *_ in saved:
            name, key = str(path[0]), ".".join(map(str, path))
            if name not in modules or key in found:
                continue
            if not _is_extra(path[1]) or (path[1] != KEYS and path[1] not in extra[name]):
                raise LayoutMismatchError(f"{key} was saved, but is not in the script")
        return found

    def find_kinds(self, ranks: Ranks, local: Collection[str]) -> None:
        """Determine which objects are local to each rank. All ranks call it together.

        Raises:
            TypeError: If ``local`` is not a list of names, or an object is a module on some ranks
                only.
            ValueError: If no rank has an object of a name in it.
        """
        parameters: dict[str, frozenset[int]] = {}
        optimizers: set[str] = set()
        for name, value in self.objects.items():
            if name.startswith(RESERVED):
                continue
            found: Iterable[Any] = ()
            if isinstance(value, Optimizer):
                optimizers.add(name)
                found = parameters_of(value)
            elif isinstance(value, nn.Module):
                found = value.parameters()
            parameters[name] = frozenset(map(id, found))
        self.kinds = find_kinds(ranks, parameters, optimizers, local)
        shared = {n: self.objects[n] for n in parameters.keys() - self.kinds.local}
        types = {
            name: type(value._value if isinstance(value, PlainValue) else value)
            for name, value in shared.items()
        }
        modules = [name for name, value in shared.items() if isinstance(value, nn.Module)]
        check_modules(ranks, types, modules)

    def has_groups(self, path: Path) -> bool:
        """Return whether a value belongs to the parameter groups of an optimizer."""
        return path[0] in self.optimizers and path[1] in ("param_groups", KEYS)

    def is_free(self, path: Path) -> bool:
        """Return whether a value can differ from the one in the script, or be absent there."""
        name = str(path[0])
        if isinstance(self.objects.get(name), nn.Module):
            return _is_extra(path[1])
        return name in self.objects

    def is_expected(self, name: str) -> bool:
        """Return whether another rank may have saved an object that this one does not have."""
        return name.startswith(RESERVED) or self.kinds.exists(name)

    def _is_of_torch(self, name: str) -> bool:
        return name in self.optimizers or isinstance(self.objects[name], nn.Module)

    @property
    def others(self) -> frozenset[str]:
        """Names of the objects that are neither modules nor their optimizers."""
        return frozenset(name for name in self.objects if not self._is_of_torch(name))

    @property
    def is_sharded(self) -> bool:
        """Whether ranks have parts of the state: local objects, or DTensors in modules."""
        modules = (value for value in self.objects.values() if isinstance(value, nn.Module))
        return self.kinds.has_local or any(
            isinstance(value, DTensor) for module in modules for value in module.parameters()
        )

    @property
    def shared_modules(self) -> frozenset[str]:
        """Names of the modules that all ranks have, with the same weights or shards of them."""
        apart = self.kinds.local | self.kinds.partial
        modules = (n for n, value in self.objects.items() if isinstance(value, nn.Module))
        return frozenset(name for name in modules if name not in apart)

    def collect_buffers(self) -> dict[str, dict[str, Any]]:
        """Return buffers and extra state of shared modules, which may differ between ranks.

        Buffers that DDP broadcasts before each forward pass are left out.
        """
        return {name: _buffers_of(self.objects[name]) for name in self.shared_modules}

    def load(self, file: SnapshotFile, *, is_trusted: bool = True) -> "Loading":
        """Check a snapshot against the objects; ``Loading.finish`` then loads it.

        Raises:
            LayoutMismatchError: If it belongs to other objects.
            ParameterGroupsError: If an optimizer has different parameter groups.
        """
        saved = {item.key: item for item in file.items}
        values: dict[str, Any] = {}
        groups: dict[str, Any] = {}
        for index, (key, one) in enumerate(saved.items()):
            if one.path[0] in self.objects and not one.dtype:
                values[key] = file.read(index, is_trusted=is_trusted)
                if self.has_groups(one.path):
                    put(groups, one.path, values[key])
            elif one.path[0] not in self.objects and not self.is_expected(str(one.path[0])):
                raise LayoutMismatchError(f"{key} is in the snapshot, but not in the script")
        present = {one.path[0] for one in saved.values()}
        for name in self.kinds.partial - present:
            raise LayoutMismatchError(f"{name} is not in the snapshot of another rank")
        self.check_groups(groups)
        mine = self.prepare(
            [(item.path, item.dtype, item.shape) for item in file.items], is_local=True
        )
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
        return Loading(self, file, mine, values)


class Loading:
    """A snapshot that matches the objects."""

    def __init__(
        self, state: State, file: SnapshotFile, mine: dict[str, Any], values: dict[str, Any]
    ) -> None:
        self._state, self._file, self._mine, self._values = state, file, mine, values

    @torch.no_grad()
    def finish(self, select: Select = lambda _: ()) -> None:
        """Load the snapshot; ``select`` may replace values, and returns the objects to skip."""
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


def _is_extra(key: Any) -> bool:
    return key == KEYS or str(key).rpartition(".")[2] == _EXTRA


def names_in(module: nn.Module, expected: Container[str]) -> dict[str, str]:
    """Return DCP's name (in ``expected``) of each value of a module, by the module's own name.

    The module can have the wrappers of DDP and ``torch.compile``.
    """
    keys = list(module.state_dict())
    return {key: key if key in expected else _unwrapped(module, key) for key in keys}


def _unwrapped(module: nn.Module, key: str) -> str:
    parts, here = [], module
    for part in key.split("."):
        is_ddp = part == "module" and isinstance(here, DistributedDataParallel)
        if not is_ddp and part != "_orig_mod":  # of torch.compile
            parts.append(part)
        here = getattr(here, part, here)
    return ".".join(parts)


def without_wrappers(key: str) -> str:
    """Return a name without the parts that DDP and torch.compile add."""
    return ".".join(part for part in key.split(".") if part not in ("module", "_orig_mod"))


def _load_module(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state dict with DCP's names, by the module's own method if the names are known."""
    names = names_in(module, dcp.get_model_state_dict(module))
    if set(names.values()) == state.keys():
        module.load_state_dict({own: state[name] for own, name in names.items()})
    else:
        dcp.set_model_state_dict(module, dict(state))


def _buffers_of(module: nn.Module) -> dict[str, Any]:
    saved = dcp.get_model_state_dict(module)
    left_out = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for at, part in module.named_modules():
        if isinstance(part, DistributedDataParallel) and part.broadcast_buffers:
            left_out |= {".".join(filter(None, (at, name))) for name, _ in part.named_buffers()}
    names = {name: key for name, key in names_in(module, saved).items() if name not in left_out}
    return {
        key: encode(saved[key]) for key in names.values() if not isinstance(saved[key], DTensor)
    }


def _combined(modules: Mapping[str, nn.Module]) -> nn.Module:
    """Return one module with the parameters of several, for optimizers of several modules."""
    whole = nn.Module()
    for name, module in modules.items():
        if not hasattr(whole, name):
            whole.add_module(name, module)
    return whole


def _needs_no_closure(optimizer: Optimizer) -> bool:
    """Return whether ``step`` works without a closure; the state of LBFGS has no names."""
    closure = signature(optimizer.step).parameters.get("closure")
    return closure is None or closure.default is not closure.empty
