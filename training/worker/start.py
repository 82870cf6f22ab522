"""Runs in a watched worker before its script: finds its page, and loads the hooks when needed.

The worker and the agent share a page of memory: the start of a file (a memfd), behind which stacks
are written. Each number there is written by one aligned store of 8 bytes, so the agent never reads
half of one. Only the worker's own process writes, not processes that it forks or starts.

Each restart waits for this module, so at start it imports nothing that a bare Python has not
loaded, e.g. ``typing``, ``__future__`` or ``mmap``, and nothing beside it. ``hook.py`` and what
that needs are loaded when the script imports torch, which they patch, or when ``ft_run.training``
uses them; the page is mapped then.

Interpreters without ft-run load it too, as a module of a package that has this folder only
(``starter/sitecustomize.py``).
"""

import os
import sys
import time
from _thread import RLock, get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, TypeAlias

    Loader: TypeAlias = "Callable[[], Callable[[ModuleType, Page], None]]"

NAME = "_ft_run_hook"
"""The name in ``sys.modules`` under which ``ft_run.training`` finds the hooks."""
_NAMES = ("progress", "expect", "piece", "enter", "leave", "tuning")
"""The functions and objects of that module."""
_LIBRARY = "torch"
"""Its import loads the hooks: they patch modules of it."""

PAGE_BYTES = 4096
STACKS_SIGNAL = 62
"""A real-time signal (``SIGRTMAX - 2``) on which all stacks are written."""

PID, FILE_FD, SINCE_NS, WANTED = 0, 5, 17, 64
"""Indexes of 8-byte words in the page: the process id (0: none yet); the worker's descriptor of the
file; the start of the current phase (CLOCK_MONOTONIC); the settings that the agent wants,
the only word that it writes. ``hook.py``, ``phases.py``, ``data_wait.py``, ``imported.py`` and
``tuning_page.py`` have the others."""

FILE = "/memfd:ft-run-page"
"""Its name in /proc/PID/fd."""
_FD_MIN = 100
"""Above the descriptors that programs usually get."""


class _Words:
    """The 8-byte words of a file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 8 * index), sys.byteorder)

    def __setitem__(self, index: int, value: int) -> None:
        os.pwrite(self._fd, value.to_bytes(8, sys.byteorder), 8 * index)


class Page:
    """The page of this worker, and the process and thread that it is about."""

    def __init__(self, words: "Any", fd: int = 0) -> None:
        """Begin the first phase.

        Args:
            words: the 8-byte words of the page.
            fd: the descriptor of its file, if it has one.
        """
        self.words, self.pid, self.thread, self._fd = words, os.getpid(), get_ident(), fd
        if words[PID]:  # of a process that has ended
            words[PID] = 0
            for word in range(PAGE_BYTES // 8):
                if word != WANTED:
                    words[word] = 0
        words[SINCE_NS], words[FILE_FD] = time.monotonic_ns(), fd
        words[PID] = self.pid  # last: from here on the agent reads the others

    def is_own(self) -> bool:
        """Return whether this process is the worker, and not one that it has forked."""
        return os.getpid() == self.pid

    def map(self) -> None:
        """Map the page into memory, which makes each access much faster.

        Raises:
            OSError: the script has closed the descriptor, or the kernel refuses.
        """
        import mmap

        _check(self._fd)
        # mmap keeps a duplicate of the descriptor, with the lowest free number, as ``dup`` gives.
        fillers = [os.dup(self._fd)]
        while fillers[-1] < _FD_MIN:
            fillers.append(os.dup(self._fd))
        try:
            self.words = memoryview(mmap.mmap(self._fd, PAGE_BYTES)).cast("Q")
        finally:
            for fd in fillers:
                os.close(fd)


class _Hooks:
    """A finder on ``sys.meta_path`` that loads the hooks on import of torch, and finds nothing.

    It is also the ``__getattr__`` of the module ``NAME`` until then.
    """

    def __init__(self, page: Page, load: "Loader") -> None:
        self._page, self._load_hooks = page, load
        self._module: Any = type(sys)(NAME)
        self._module.__dict__["__getattr__"] = self._attribute
        self._lock, self._is_loaded = RLock(), False
        sys.modules[NAME] = self._module
        sys.meta_path.insert(0, self)
        if _LIBRARY in sys.modules:
            self._load()

    def find_spec(self, name: str, *_: object) -> None:
        """Load the hooks if ``name`` is the library; the other finders find it."""
        if name == _LIBRARY:
            self._load()

    def _attribute(self, name: str) -> "Any":
        if name not in _NAMES:  # others look for e.g. ``__file__`` in all modules
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        self._load()
        return getattr(self._module, name)

    def _load(self) -> None:
        with self._lock:
            if self._is_loaded:
                return
            try:
                self._page.map()
                self._load_hooks()(self._module, self._page)
            except Exception as error:
                _say(error)
                for name in _NAMES:
                    setattr(self._module, name, None if name == "tuning" else _do_nothing)
            self._is_loaded = True
            if self in sys.meta_path:
                sys.meta_path.remove(self)


def _do_nothing(*_: object) -> None:
    pass


def _say(error: Exception) -> None:
    now = time.strftime("%H:%M:%S")
    os.write(2, f"{now} ft-run cannot watch this worker: {error!r}\n".encode())


def install_or_say(fd: int, load: "Loader") -> None:
    """Watch this process, or log why not: the worker runs in any case."""
    try:
        install(fd, load)
    except Exception as error:
        _say(error)


def install(fd: int, load: "Loader") -> None:
    """Watch this process, unless another live process uses the same page.

    Args:
        fd: of the file with the page; the caller may close it.
        load: imports ``hook.py``, and returns its ``install``.

    Raises:
        OSError: the descriptor is invalid, or the kernel refuses.
    """
    import faulthandler

    _check(fd)  # a process may have inherited the variable without the descriptor
    words = _Words(fd)
    if words[PID] and words[PID] != os.getpid() and os.path.exists(f"/proc/{words[PID]}"):
        return
    own = os.dup2(fd, _free(), inheritable=False)
    faulthandler.register(STACKS_SIGNAL, file=own, all_threads=True)
    _Hooks(Page(_Words(own), own), load)


def _check(fd: int) -> None:
    if not os.readlink(f"/proc/self/fd/{fd}").startswith(FILE):
        raise OSError(f"descriptor {fd} is not the page that is shared with ft-run")


def _free() -> int:
    """Return the first descriptor from ``_FD_MIN`` on that is not open."""
    fd = _FD_MIN
    while True:
        try:
            os.fstat(fd)
        except OSError:
            return fd
        fd += 1
