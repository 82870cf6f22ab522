"""Detects changes of the files that a process has imported."""

import os
from collections.abc import Iterator
from types import ModuleType

_Mark = tuple[int, int, int]


class ImportedFiles:
    """The files of modules, and of the libraries mapped into this process, at creation."""

    def __init__(self, modules: list[ModuleType]) -> None:
        self._marks: dict[str, _Mark | None] = {}
        for path in {*_sources(modules), *_mapped()}:
            found = _existing(path)
            if found is not None:
                self._marks[found] = _mark(found)

    def changed(self) -> str | None:
        """Return a file that has changed, or None."""
        # Every file: a directory's time does not change if a file in it is rewritten in place.
        return next((path for path, mark in self._marks.items() if _mark(path) != mark), None)


def _mark(path: str) -> _Mark | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _existing(path: str) -> str | None:
    """Return the path, or the path of its archive; None if no such file exists."""
    while len(path) > 1:
        if os.path.exists(path):
            return None if os.path.isdir(path) else path
        path = os.path.dirname(path)
    return None


def _sources(modules: list[ModuleType]) -> Iterator[str]:
    for module in modules:
        spec = getattr(module, "__spec__", None)
        path = getattr(spec, "origin", None) if getattr(spec, "has_location", False) else None
        if isinstance(path, str) and os.path.isabs(path):
            yield path


def _mapped() -> Iterator[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.rstrip("\n").split(None, 5)
            if len(words) == 6 and words[5].startswith("/"):
                yield words[5]
