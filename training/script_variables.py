"""Variables of a training script that affect its steps, but are not in its state."""

import functools
import gc
import os
import random
import sys
import types
import zlib
from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from .fingerprints import fingerprint

_PLAIN = (bool, int, float, complex, str, bytes, set, torch.Tensor)
_LIVE = (LRScheduler, AveragedModel, torch.amp.GradScaler)
_STATEFUL = (nn.Module, torch.optim.Optimizer, *_LIVE)
_OF_MODULES = frozenset(vars(nn.Module()))
_ITEMS, _DEPTH, _LARGEST_BYTES = 2000, 6, 1 << 26
_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = (os.path.dirname(os.__file__), _HERE, os.path.dirname(_HERE) + "/launcher")


def variables(objects: Mapping[str, Any]) -> dict[str, int]:
    """Return a digest of each variable in the script's frames that is not in the state, by name."""
    walk = _Walk(objects)
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if _is_own(frame.f_code.co_filename):
            for name, value in list(frame.f_locals.items()):
                walk.visit(name, value)
        frame = frame.f_back
    for one in _live():
        walk.visit(f"a {type(one).__name__}", one)
    return walk.found


@functools.cache
def _live() -> list[Any]:
    """Return objects that only a library keeps; they exist when the first state is restored."""
    return [one for one in gc.get_objects() if issubclass(type(one), _LIVE)]


@functools.cache
def _is_own(file: str) -> bool:
    path = os.path.abspath(file)
    return file.endswith(".py") and "-packages/" not in path and not path.startswith(_LIBRARIES)


class _Walk:
    """Finds values by name: in containers, closures and objects of the script's classes."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.found: dict[str, int] = {}
        modules = [value for value in objects.values() if isinstance(value, nn.Module)]
        self._parts = {id(part) for module in modules for part in module.modules()}
        self._seen = {id(getattr(value, "_value", value)) for value in objects.values()}
        self._seen |= {id(one) for module in modules for one in module.parameters()}
        self._seen |= {id(one) for module in modules for one in module.buffers()}

    def visit(self, name: str, value: Any, depth: int = 0) -> None:
        """Add a variable and its content. Items of a container have the container's name."""
        size = getattr(value, "nbytes", 0)  # dictionaries with attributes return None
        is_large = isinstance(size, int) and size > _LARGEST_BYTES
        is_large |= len(self.found) > _ITEMS
        if id(value) in self._seen or name.startswith("__") or depth > _DEPTH or is_large:
            return
        if isinstance(value, _PLAIN):
            self._add(name, value)
            return
        self._seen.add(id(value))
        kind = f"{name} ({type(value).__name__})"
        is_numpy = type(value).__module__.startswith("numpy")
        if isinstance(value, list | tuple | Mapping):
            self._add(name, None)
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, inner in islice(pairs, _ITEMS):
                self._add(name, key)
                self.visit(name, inner, depth + 1)
        elif isinstance(value, _STATEFUL) and id(value) not in self._parts:
            self._add(kind, value.state_dict())
        elif isinstance(value, torch.Generator):
            self._add(kind, value.get_state())
        elif isinstance(value, random.Random) or is_numpy:
            self._add(kind, value)
        for part, inner in list(_inside(value).items()):
            self.visit(f"{name}.{part}", inner, depth + 1)

    def _add(self, name: str, value: Any) -> None:
        text = str(fingerprint(value))
        self.found[name] = zlib.crc32(text.encode(), self.found.get(name, 0))


def _inside(value: Any) -> dict[str, Any]:
    home = str(getattr(value, "__module__", None) or getattr(value, "__name__", ""))
    is_own = home == "__main__" or _is_own(getattr(sys.modules.get(home), "__file__", None) or "")
    if not is_own and not isinstance(value, DataLoader):
        return {}
    attributes = getattr(value, "__dict__", {})
    found = {name: one for name, one in attributes.items() if name not in _OF_MODULES}
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        found |= {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
    return found
