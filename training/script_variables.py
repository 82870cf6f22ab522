"""Variables of a training script that take part in its steps, but are not in its state."""

import functools
import gc
import os
import random
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from .fingerprints import fingerprint

_PLAIN = (bool, int, float, complex, str, bytes, torch.Tensor)
_LIVE = (LRScheduler, AveragedModel, torch.amp.GradScaler)
_OF_LOADERS = ("generator", "sampler", "batch_sampler", "dataset")
_OF_MODULES = frozenset(vars(nn.Module()))
_ITEMS = 2000
_LENGTH = 60
_LARGEST_BYTES = 1 << 26
_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOTS = (
    os.path.dirname(os.__file__) + "/",
    _HERE + "/",
    os.path.dirname(_HERE) + "/launcher/",
)


class Variables:
    """Reads the variables of the script's frames, and the objects that they contain."""

    def __init__(self) -> None:
        self._live: dict[str, Any] | None = None

    def read(self, objects: Mapping[str, Any]) -> dict[str, str]:
        """Return the fingerprint of each variable outside the state, by name.

        Args:
            objects: objects of the state.
        """
        walk = _Walk(objects)
        for name, value in _roots():
            walk.visit(name, value, 0)
        if self._live is None:  # objects that only a library keeps
            self._live = {
                type(o).__name__: o for o in gc.get_objects() if issubclass(type(o), _LIVE)
            }
        for name, value in self._live.items():
            walk.visit(f"a {name}", value, 0)
        return {name: _short(fingerprint(value)) for name, value in walk.found.items()}


def _short(leaves: Mapping[str, str]) -> str:
    text = ", ".join(f"{path} {leaf}".lstrip() for path, leaf in leaves.items())
    return text if len(text) < _LENGTH else f"{zlib.crc32(text.encode()):08x}"


def _roots() -> Iterator[tuple[str, Any]]:
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if _is_own(frame.f_code.co_filename):
            yield from list(frame.f_locals.items())
        frame = frame.f_back


@functools.cache
def _is_own(file: str) -> bool:
    """Return whether a source file belongs to the script, and not to a library or to ft-run."""
    path = os.path.abspath(file)
    is_library = "site-packages" in path or "dist-packages" in path or path.startswith(_ROOTS)
    return file.endswith(".py") and not is_library


@functools.cache
def _is_own_module(name: str) -> bool:
    return name == "__main__" or _is_own(getattr(sys.modules.get(name), "__file__", None) or "")


class _Walk:
    """Finds values by name: through containers, closures and objects of the script's classes."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.found: dict[str, Any] = {}
        self._seen: set[int] = set()
        self._modules: set[int] = set()
        for value in objects.values():
            self._seen.add(id(getattr(value, "_value", value)))
            if isinstance(value, nn.Module):
                self._modules |= {id(part) for part in value.modules()}
                self._seen |= {id(one) for one in (*value.parameters(), *value.buffers())}

    def visit(self, name: str, value: Any, depth: int) -> None:
        """Add a variable and what it contains."""
        if name.startswith("__") or depth > 6 or len(self.found) > _ITEMS:
            return
        if isinstance(value, _PLAIN):
            if id(value) not in self._seen and getattr(value, "nbytes", 0) <= _LARGEST_BYTES:
                self.found[name] = value
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if (state := _state_of(value)) is not None and id(value) not in self._modules:
            self.found[f"{name} ({type(value).__name__})"] = state
        elif isinstance(value, list | tuple | Mapping):
            if _is_plain(value):
                self.found[name] = value
            else:
                for part, inner in list(_parts(value))[:_ITEMS]:
                    self.visit(f"{name}[{part!r}]", inner, depth + 1)
        for part, inner in _inside(value):
            self.visit(f"{name}.{part}", inner, depth + 1)


def _parts(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else enumerate(value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, list | tuple | Mapping):
        return depth < 4 and all(_is_plain(one, depth + 1) for _, one in _parts(value))
    return value is None or isinstance(value, _PLAIN)


def _state_of(value: Any) -> Any:
    """Return the state of an object that has one; None: its attributes are looked at."""
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return {"state": hash(value.getstate())}
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return {"state": str(value.get_state())}
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return {"value": value.tobytes()}
    if isinstance(value, (nn.Module, torch.optim.Optimizer, *_LIVE)):
        return value.state_dict()
    return None


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield attributes of an object of the script, values in a closure, sources of a loader."""
    if isinstance(value, types.FunctionType):
        if _is_own_module(value.__module__ or ""):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                if cell != types.CellType():
                    yield name, cell.cell_contents
            yield from vars(value).items()
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
    elif isinstance(value, functools.partial):
        yield "func", value.func
        yield from ((str(number), one) for number, one in enumerate(value.args))
    elif isinstance(value, types.ModuleType):
        if _is_own_module(value.__name__):
            yield from list(vars(value).items())
    elif isinstance(value, type):
        if _is_own_module(value.__module__):
            yield from list(vars(value).items())
    elif not _is_own_module(type(value).__module__):
        if isinstance(value, DataLoader | Dataset):
            yield from ((name, getattr(value, name, None)) for name in _OF_LOADERS)
    else:
        for name, inner in list(getattr(value, "__dict__", {}).items()):
            if not (isinstance(value, nn.Module) and name in _OF_MODULES):
                yield name, inner
