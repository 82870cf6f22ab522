"""The state of an optimizer, with parameter names instead of torch's indices."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_not
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.optim import SGD, Optimizer

from .checkpoint_files import LayoutMismatchError
from .copying import local

Path = tuple[str | int, ...]
"""Keys of a value in the state dict, outermost first."""
Saved = tuple[Path, str, Sequence[int]]
"""Path, dtype (e.g. ``float32``; empty if not a tensor) and shape of a value."""

_STATE, _GROUPS, _PARAMETERS = "state", "param_groups", "params"
_STEP = "step"
"""The value that torch keeps on the CPU."""


class ParameterGroupsError(RuntimeError):
    """Raised if a saved optimizer has different parameter groups from the script's."""


class OptimizerState:
    """The state of an optimizer whose parameters have names in a module.

    It is read and set by the optimizer's ``state_dict`` and ``load_state_dict``. The helpers of
    ``torch.distributed.checkpoint`` lose the state of parameters that are frozen when it is loaded,
    groups that are empty or differ, and an optimizer's additional keys.
    """

    def __init__(self, name: str, optimizer: Optimizer, owner: nn.Module) -> None:
        """All parameters of the optimizer belong to ``owner``, which has their names."""
        self._name, self._optimizer, self._owner = name, optimizer, owner
        self._parameters: list[Any] = []
        """The parameters with known names."""
        self._names: list[str] = []
        self._places: list[tuple[dict[str, Any], str, object]] = []
        """Dictionary, key and value of each parameter and of each module on the path to it."""
        self._counts: list[int] = []
        """Number of parameters per group when training started."""

    # --- saving ----------------------------------------------------------------------------------

    def collect(self) -> dict[str, Any]:
        """Return the state dict, which shares the memory of the optimizer."""
        names = self._find_names()
        saved = self._optimizer.state_dict()
        state = {_named(names, key): value for key, value in saved[_STATE].items()}
        groups = [
            {**group, _PARAMETERS: [names[index] for index in group[_PARAMETERS]]}
            for group in saved[_GROUPS]
        ]
        return {**saved, _STATE: state, _GROUPS: groups}

    def _find_names(self) -> list[str]:
        now = parameters_of(self._optimizer)
        is_known = (
            len(now) == len(self._parameters)
            and not any(map(is_not, now, self._parameters))
            and all(place.get(key) is what for place, key, what in self._places)
        )
        if not is_known:
            self._parameters, self._names = now, _names_of(self._owner, now)
            self._places = [*_places_of(self._owner, {id(parameter) for parameter in now})]
        return self._names

    # --- loading ---------------------------------------------------------------------------------

    def check_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Compare saved groups, which have parameter names, with those of the script.

        Raises:
            LayoutMismatchError: If they belong to a different kind of optimizer.
            ParameterGroupsError: If they have different parameters, or their number differs.
        """
        advice = (
            "create all parameter groups at the start, before the state is restored, the same in "
            "each run"
        )
        mine = self._groups_of_names()
        if len(groups) != len(mine):
            raise ParameterGroupsError(
                f"{self._name!r} has {len(groups)} parameter groups in the saved state, but "
                f"{len(mine)} in the script: {advice}"
            )
        for number, (group, names) in enumerate(zip(groups, mine, strict=True)):
            theirs = group.get(_PARAMETERS, [])
            for name in (*theirs, *names):
                if (name in theirs) != (name in names):
                    where = "saved state" if name in theirs else "script"
                    raise ParameterGroupsError(
                        f"parameter group {number} of {self._name!r} has {name} only in the "
                        f"{where}: {advice}"
                    )
        for group, own in zip(groups, self._optimizer.param_groups, strict=True):
            # Other versions of torch and schedulers only add keys; a different kind of optimizer
            # also lacks some.
            missing, unknown = self._optimizer.defaults.keys() - group.keys(), group.keys() - own
            if missing and unknown:
                raise LayoutMismatchError(
                    f"{self._name!r} is an optimizer of another kind: it was saved with "
                    f"{min(unknown)}, and has {min(missing)} in the script"
                )

    def _groups_of_names(self) -> list[list[str]]:
        names = iter(self._find_names())
        return [[next(names) for _ in group[_PARAMETERS]] for group in self._optimizer.param_groups]

    def prepare(self, saved: Sequence[Saved], *, is_local: bool) -> dict[Path, torch.Tensor]:
        """Return tensors to load into, by path; the optimizer does not change.

        Args:
            saved: the values of this optimizer; paths start in its state dict.
            is_local: whether the shapes of sharded tensors are those of this rank's parts.

        Raises:
            LayoutMismatchError: If the optimizer does not have such a value.
        """
        parameters = dict(zip(self._find_names(), self._parameters, strict=True))
        found: dict[Path, torch.Tensor] = {}
        left: list[Path] = []
        for path, dtype, shape in saved:
            if not dtype:
                continue
            parameter = parameters.get(str(path[1])) if path[0] == _STATE else None
            if parameter is None:
                found[path] = _empty_like(self._optimizer, path, dtype, shape)
            elif type(parameter) is nn.Parameter or path[-1] == _STEP or not shape:
                # On the device to which torch's load_state_dict would otherwise copy them.
                device = "cpu" if path[-1] == _STEP else parameter.device
                found[path] = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            elif tuple(shape) == tuple(local(parameter).shape if is_local else parameter.shape):
                found[path] = torch.empty_like(
                    parameter.detach(), dtype=getattr(torch, dtype), requires_grad=False
                )
            else:
                left.append(path)
        if left:
            names = {str(path[1]) for path, *_ in saved if path[0] == _STATE}
            created = self._create([name in names for name in self._names])
            for path in left:
                found[path] = value = _at(created, path)
                if not isinstance(value, torch.Tensor):
                    key = ".".join(map(str, (self._name, *path)))
                    raise LayoutMismatchError(f"{key} is saved, but the optimizer does not have it")
        return found

    @torch.no_grad()
    def _create(self, have_state: Sequence[bool]) -> Mapping[str, Any]:
        """Return a state that torch's helper creates by a step of the optimizer.

        Only the optimizer knows how it shards tensors whose shapes differ from the parameters'.
        """
        optimizer = self._optimizer
        kept = dict(optimizer.state), [dict(group) for group in optimizer.param_groups]
        trained = [parameter.requires_grad for parameter in self._parameters]
        try:
            optimizer.state.clear()
            for parameter, has_state in zip(self._parameters, have_state, strict=True):
                parameter.requires_grad_(has_state)
            with _without_gradients(self._parameters):
                created: Any = dcp.get_optimizer_state_dict(self._owner, optimizer)
            return created  # type: ignore[no-any-return]  # a dictionary
        finally:
            for parameter, is_trained in zip(self._parameters, trained, strict=True):
                parameter.requires_grad_(is_trained)
            optimizer.state.clear()
            optimizer.state.update(kept[0])
            for group, before in zip(optimizer.param_groups, kept[1], strict=True):
                group.update(before)

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state dict with names, after ``check_groups``."""
        index = {name: number for number, name in enumerate(self._find_names())}
        saved = {index.get(key, key): value for key, value in state.get(_STATE, {}).items()}
        numbers = iter(range(len(index)))
        groups = [
            {**group, _PARAMETERS: [next(numbers) for _ in names]}
            for group, names in zip(state[_GROUPS], self._groups_of_names(), strict=True)
        ]
        load_exactly(self._optimizer, {**state, _STATE: saved, _GROUPS: groups})

    # --- groups added during training ------------------------------------------------------------

    def begin(self) -> None:
        """Record the groups with which training starts."""
        self._counts = self._count()

    def has_grown(self) -> bool:
        """Return whether parameters were added since ``begin`` or the last call."""
        before, self._counts = self._counts, self._count()
        return before != self._counts

    def _count(self) -> list[int]:
        return [len(group[_PARAMETERS]) for group in self._optimizer.param_groups]


def load_exactly(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict of an optimizer, without torch's casts."""
    optimizer.load_state_dict(state)
    saved = state.get(_STATE, {})
    for number, parameter in enumerate(parameters_of(optimizer)):
        if number in saved:
            _mend(optimizer.state.get(parameter), saved[number])


def is_standard(optimizer: Optimizer) -> bool:
    """Return whether the state dict of an optimizer has torch's format."""
    saved = optimizer.state_dict()
    return isinstance(saved, Mapping) and {_STATE, _GROUPS} <= saved.keys()


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """Return the parameters of all groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group[_PARAMETERS]]


def _named(names: Sequence[str], key: Any) -> Any:
    """Return the name for an index; an optimizer can also have other keys."""
    return names[key] if type(key) is int and key < len(names) else key


def _names_of(owner: nn.Module, parameters: Sequence[Any]) -> list[str]:
    if not parameters:
        return []
    plain = SGD(list(parameters), lr=0.0)
    with _without_step(parameters):
        found: Any = dcp.get_optimizer_state_dict(owner, plain)
    names: list[str] = found[_GROUPS][0][_PARAMETERS]
    return names


def _places_of(owner: nn.Module, mine: set[int]) -> Iterator[tuple[dict[str, Any], str, object]]:
    for module in owner.modules():
        yield from ((module._modules, *child) for child in module._modules.items())
        for key, parameter in module._parameters.items():
            if id(parameter) in mine:
                yield module._parameters, key, parameter


def _at(value: Any, path: Path) -> Any:
    for key in path:
        if isinstance(value, Mapping):
            value = next((inner for own, inner in value.items() if str(own) == str(key)), None)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def _empty_like(optimizer: Optimizer, path: Path, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """Return an empty tensor for a group value, on the device of the script's own, e.g. ``lr``."""
    own = _at(optimizer.param_groups, path[1:]) if path[0] == _GROUPS else None
    device = own.device if isinstance(own, torch.Tensor) else "cpu"
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


def _mend(loaded: Any, saved: Any) -> None:
    """Undo changes that torch's ``load_state_dict`` makes to the state of a parameter.

    It casts tensors to the dtype of the parameter, and replaces strings by the string of a
    generator.
    """
    if not isinstance(loaded, dict) or not isinstance(saved, Mapping):
        return
    for key, value in saved.items():
        now = loaded.get(key)
        if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor):
            if now.dtype != value.dtype:
                loaded[key] = value.to(now.device)
        elif isinstance(value, str | bytes):
            loaded[key] = value
        else:
            _mend(now, value)


@contextmanager
def _without_step(parameters: Sequence[Any]) -> Iterator[None]:
    """Prevent torch's helper from stepping the optimizer, which it does without gradients."""
    first = next((p for p in parameters if p.requires_grad), None)
    if first is None or any(p.grad is not None for p in parameters):
        yield
        return
    first.grad = torch.zeros_like(first)
    try:
        yield
    finally:
        first.grad = None


@contextmanager
def _without_gradients(parameters: Sequence[Any]) -> Iterator[None]:
    """Make torch's helper step the optimizer, which it does only without gradients."""
    gradients = [p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
