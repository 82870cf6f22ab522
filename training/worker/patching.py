"""Patches modules of torch when the script imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def take_name(function: Any, of: Any) -> None:
    """Give a function the name, docstring and signature of the one that it replaces and calls."""
    function.__name__, function.__qualname__ = of.__name__, of.__qualname__
    function.__doc__, function.__module__ = of.__doc__, of.__module__
    function.__wrapped__ = of


class _Finder:
    """A finder on ``sys.meta_path`` that patches modules on import, and then removes itself."""

    def __init__(self, awaited: dict[str, Callable[[Any], None]]) -> None:
        self._awaited = awaited

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._awaited:
            return None
        change = self._awaited.pop(name)
        if not self._awaited:
            sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                _after_loading(spec.loader, change)
                return spec
        return None


def _after_loading(loader: Any, change: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def execute_and_change(module: Any) -> None:
        del loader.exec_module  # uncovers the method of the class
        execute(module)
        change(module)

    loader.exec_module = execute_and_change


def when_loaded(changes: dict[str, Callable[[Any], None]]) -> None:
    """Patch modules by name, now or when they are imported."""
    awaited = {}
    for name, change in changes.items():
        if (loaded := sys.modules.get(name)) is not None:
            change(loaded)
        else:
            awaited[name] = change
    if awaited:
        sys.meta_path.insert(0, _Finder(awaited))
