"""Turns a forked process into the equivalent of ``python -u script.py`` and runs the script.

The interpreter does its own work where it offers that (``PyRun_SimpleFile``, ``runpy``): it also
reports the exception that ends the program. The rest follows CPython's ``Modules/main.c`` and
``Python/pathconfig.c``. ``docs/reference/preload.md`` lists the differences that remain.
"""

import atexit
import builtins
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

from ...training.worker import start, store_wait
from ...training.worker.hook import install as install_hooks  # loaded once for all workers
from ...training.worker.starter import capture
from ..processes.ipc import close_all
from ..processes.prctl import die_with_parent
from ..processes.title import set_process_title
from ..processes.worker_exec import Worker, set_up
from . import rank_at_import

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
_libc.fopen.restype = ctypes.c_void_p
_libc.fflush.argtypes = [ctypes.c_void_p]

_run_file = ctypes.pythonapi.PyRun_SimpleFileExFlags
_run_file.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
_run_file.restype = ctypes.c_int
_run_string = ctypes.pythonapi.PyRun_SimpleStringFlags
_run_string.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
_run_string.restype = ctypes.c_int
_get_importer = ctypes.pythonapi.PyImport_GetImporter
_get_importer.argtypes = [ctypes.py_object]
_get_importer.restype = ctypes.py_object

_STREAMS = ("stdin", "stdout", "stderr")
"""The names in ``sys`` of the streams of descriptors 0, 1 and 2."""

_TORCH_CONSTANT_SEED = 67280421310721
"""``c10::detail::default_rng_seed_val`` of torch's c10/core/GeneratorImpl.h."""

_CHECKED_FOR_LEAKS = "triton"
"""A package whose extension (nanobind) prints, at the end of the interpreter, which of its objects
were not released: all of them if they stay frozen. Their release copies pages of the fork server,
so nothing else is unfrozen."""

_FAILED = -1
"""Result of ``_run_file`` and ``_run_string`` if a program ended with an exception."""


class Program(NamedTuple):
    """The program of a worker, called at the bottom of its stack."""

    function: Callable[..., object]
    arguments: tuple[object, ...]

    def end(self, status: object) -> None:
        """Exit as after the program's last line: return on success, else raise ``SystemExit``.

        After an interrupt the interpreter ends itself with SIGINT, as its last action.
        """
        if status == _FAILED and getattr(sys, "last_type", None) is not KeyboardInterrupt:
            raise SystemExit(1)


def first_path(argv: list[str]) -> str | None:
    """Return the entry that ``python -u …`` puts at the head of ``sys.path``; None for nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    if argv[2] == "-m":
        return os.getcwd()
    if argv[2] == "-c":
        return ""
    path = _absolute(argv[2])
    known = path in sys.path_importer_cache
    try:
        if _is_archive(argv[2]):
            return path
    finally:
        if not known:
            sys.path_importer_cache.pop(path, None)
    return os.path.dirname(os.path.realpath(argv[2]))


def pretend(argv: list[str], bare_main: dict[str, Any], *, is_secluded: bool) -> str | None:
    """Show preloaded modules the same ``sys.argv`` and ``sys.path`` that a worker has.

    ``is_secluded``: the worker's program first removes its own directory from ``sys.path``. Returns
    the new head of ``sys.path``, if any.
    """
    path0 = None if is_secluded else first_path(argv)
    if path0 is not None:
        sys.path.insert(0, path0)
    _set_arguments(argv)
    main = _new_main(bare_main)
    if argv[2] not in ("-m", "-c"):
        main.__file__ = _absolute(argv[2])
    return path0


def become(
    parent: int,
    worker: Worker,
    streams: list[int],
    environ: dict[str, str],
    path0: str | None,
) -> Program:
    """Turn a forked process into a worker; return the program that it must run.

    Args:
        streams: its descriptors; they are closed when they have their final numbers.
        environ: the variables that the preload found; changes that the preload made are kept.
        path0: the head of ``sys.path`` in the fork server.
    """
    argv = worker.argv
    die_with_parent(parent)
    _freshen()
    _renew_main()
    set_up(worker, streams)
    if worker.is_watched:
        start.install_or_say(streams[-2], streams[-1], lambda: install_hooks)
    else:
        store_wait.await_store()
    close_all(streams)
    for name, value in worker.env.items():
        if environ.get(name) != value:
            os.environ[name] = value
    if _CHECKED_FOR_LEAKS in sys.modules:
        atexit.register(gc.unfreeze)  # the first one registered runs last
    rank_at_import.read_again()
    if worker.captures_errors:
        capture.install_or_say(os.environ["TORCHELASTIC_ERROR_FILE"])
    set_process_title(argv)
    _set_arguments(argv)
    _set_path(path0, first_path(argv))
    for finder in sys.meta_path:  # directories may have changed since the preload
        if hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    return _program(argv)


def flush() -> None:
    """Write buffered output; otherwise every worker would write it again."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with suppress(Exception):  # a module's stream may lack it or be closed
                stream.flush()
    _libc.fflush(None)


def detoured(targets: list[int]) -> str | None:
    """Return a standard stream that would not write to the worker's descriptors; None if all do.

    A module may replace a stream with another object. An object without a descriptor writes through
    the previous stream. An object with another descriptor writes to the fork server's output.
    """
    for fd, name in enumerate(_STREAMS):
        with suppress(Exception):  # it has no descriptor
            if fd in targets and getattr(sys, name).fileno() != fd:
                return f"sys.{name}"
    return None


def _program(argv: list[str]) -> Program:
    if argv[2] == "-m":
        return _module(argv[3], alter_argv=True)
    if argv[2] == "-c":
        return Program(_run_string, (argv[3].encode() + b"\n", None))
    path = _absolute(argv[2])
    if _is_archive(argv[2]):
        return _module("__main__", alter_argv=False)
    file = _libc.fopen(os.fsencode(path), b"rbe")
    if not file:
        # The interpreter's own message and exit code for a script that cannot be read.
        os.execvpe(argv[0], argv, os.environ)
    return Program(_run_file, (file, os.fsencode(path), 1, None))


def _module(name: str, *, alter_argv: bool) -> Program:
    # Run as a string: the interpreter reports exceptions only of programs that it runs itself.
    call = f"__import__('runpy')._run_module_as_main({name!a}, {alter_argv})\n"
    return Program(_run_string, (call.encode(), None))


def _is_archive(script: str) -> bool:
    """Return whether a script is a directory or an archive with a ``__main__``."""
    return _get_importer(_absolute(script)) is not None


def _absolute(script: str) -> str:
    return script if os.path.isabs(script) else f"{os.getcwd()}/{script}"


def _set_arguments(argv: list[str]) -> None:
    sys.orig_argv = list(argv)
    sys.argv = [argv[2], *argv[4 if argv[2] in ("-m", "-c") else 3 :]]


def _set_path(old: str | None, new: str | None) -> None:
    if old == new or new is None:
        return
    if old in sys.path:
        sys.path.remove(old)
    sys.path.insert(0, new)


def _new_main(bare_main: dict[str, Any]) -> ModuleType:
    """Install a new ``__main__`` with the contents that a bare interpreter has."""
    main = ModuleType("__main__")
    main.__dict__.clear()
    for name, value in bare_main.items():
        if name not in ("__file__", "__cached__"):
            main.__dict__[name] = dict(value) if isinstance(value, dict) else value
    main.__dict__["__loader__"] = builtins.__loader__
    sys.modules["__main__"] = main
    return main


def _renew_main() -> None:
    """Replace ``__main__``, including under the other names that modules gave it (``__mp_main__``).

    Objects that existed when the fork server froze its heap are not finalized when a worker ends.
    The program's own objects are finalized.
    """
    old = sys.modules["__main__"]
    new = _new_main(old.__dict__)
    for name, module in list(sys.modules.items()):
        if module is old:
            sys.modules[name] = new


def _freshen() -> None:
    """Reseed the random generators and keys that modules created at import.

    ``random`` reseeds itself after a fork. torch seeds its generator when it is imported, in older
    versions with a constant. A GPU's generator is created with its context, in the worker.
    """
    numpy_random = sys.modules.get("numpy.random.mtrand")
    if numpy_random is not None:
        numpy_random.seed()
    torch_random = sys.modules.get("torch.random")
    if torch_random is not None:
        generator = torch_random.default_generator
        if generator.initial_seed() != _TORCH_CONSTANT_SEED:
            generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    threading = sys.modules.get("threading")
    if threading is not None:
        threading.main_thread()._set_native_id()
