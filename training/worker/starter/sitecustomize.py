"""Imported by the interpreter of an executed worker that has a hook, before its script.

It replaces the ``sitecustomize`` that the worker would have, if any: it restores the environment,
installs the hooks, and imports that one. The worker's interpreter need not have ft-run, because the
hooks are read from files.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PACKAGE = "_ft_run_worker"


def _take_off(folder: str) -> "tuple[int, int, int, int]":
    """Restore environment and path; return the values that ``starter_env`` has set."""
    given = os.environ.pop("FT_RUN_HOOK", "-1:-1:0:0").split(":")
    fd, stacks_fd, is_empty, pid = (int(number) for number in given)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder in path:
        path.remove(folder)
        if path or is_empty:
            os.environ["PYTHONPATH"] = os.pathsep.join(path)
        else:
            del os.environ["PYTHONPATH"]
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    return fd, stacks_fd, is_empty, pid


def _module(folder: str, name: str) -> "Any":
    """Return a module of ft-run without importing it: the interpreter would search for it first."""
    name, path = f"{_PACKAGE}.{name}", os.path.join(folder, f"{name}.py")
    loader: Any = type(__spec__.loader)  # it reads the compiled form if there is one
    module: Any = type(sys)(name)
    module.__file__, module.__spec__ = path, type(__spec__)(name, loader(name, path), origin=path)
    module.__spec__.loader.exec_module(module)
    return module


def _watch(folder: str, fd: int, stacks_fd: int) -> None:
    """Watch the process with modules of ft-run, in a separate package."""
    package: Any = type(sys)(_PACKAGE)
    package.__path__ = [folder]
    sys.modules[_PACKAGE] = package
    for name in ("page_layout", "start"):
        module = _module(folder, name)
        sys.modules[module.__name__] = module
    module.install_or_say(fd, stacks_fd, _hooks)


def _hooks() -> "Any":
    __import__(f"{_PACKAGE}.hook")
    return sys.modules[f"{_PACKAGE}.hook"].install


_folder = os.path.dirname(os.path.abspath(__file__))
_fd, _stacks_fd, _, _pid = _take_off(_folder)
# A program between ft-run and the script may start several interpreters: one is the worker.
if _pid == os.getpid():
    _module(_folder, "capture").install_or_say(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
if _fd >= 0:
    _watch(os.path.dirname(_folder), _fd, _stacks_fd)
    os.close(_fd)
    os.close(_stacks_fd)
del sys.modules["sitecustomize"]
# Its errors, including that it does not exist, reach the interpreter's `site` as usual.
__import__("sitecustomize")
