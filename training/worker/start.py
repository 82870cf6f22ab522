"""Runs in a watched worker before its script: finds its page, and loads the hooks when needed.

The worker and the agent share a page of memory (``page_layout.py``) and a file to which the worker
writes its stacks; both are memfds. Only the worker's own process writes, not processes that it
forks or starts.

Each restart waits for this module, so at start it imports only ``page_layout.py`` and modules that
are built into Python or that it has loaded, not e.g. ``typing``, ``__future__`` or ``mmap``.
``hook.py`` and its imports are loaded when the script imports torch, which they patch, or when
``ft_run.training`` uses them; the page is mapped then.

Interpreters without ft-run load it too, as a module of a package that contains only this directory
(``starter/sitecustomize.py``).
"""

import faulthandler
import os
import sys
import time
from _thread import RLock, get_ident

from .page_layout import PAGE_BYTES, PAGE_FILE, PID, SINCE_NS, STACKS_FD, STACKS_FILE, WANTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, TypeAlias

    Loader: TypeAlias = "Callable[[], Callable[[ModuleType, Page], None]]"

NAME = "_ft_run_hook"
"""Name in ``sys.modules`` under which ``ft_run.training`` finds the hooks."""
_NAMES = ("progress", "expect", "piece", "enter", "leave", "page")
"""Functions and objects of that module."""
_LIBRARY = "torch"
"""Its import loads the hooks, which patch modules of it."""

STACKS_SIGNAL = 62
"""Real-time signal (``SIGRTMAX - 2``) on which all stacks are written."""

_FD_MIN = 100
"""Higher than the descriptors that programs usually get."""


class _Words:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 8 * index), sys.byteorder)

    def __setitem__(self, index: int, value: int) -> None:
        os.pwrite(self._fd, value.to_bytes(8, sys.byteorder), 8 * index)


class Page:
    """The page of this worker, and its process and thread."""

    def __init__(self, words: "Any", fd: int = 0, stacks_fd: int = 0) -> None:
        """Start the first phase; ``fd`` is the page's file, ``stacks_fd`` the file for stacks."""
        self.words, self.pid, self.thread, self._fd = words, os.getpid(), get_ident(), fd
        if words[PID]:  # from a process that has ended
            words[PID] = 0
            for word in range(PAGE_BYTES // 8):
                if word != WANTED:
                    words[word] = 0
        words[SINCE_NS], words[STACKS_FD] = time.monotonic_ns(), stacks_fd
        words[PID] = self.pid  # last: from here on the agent reads the others

    def is_own(self) -> bool:
        """Return whether this process is the worker itself, not one that it has forked."""
        return os.getpid() == self.pid

    def map(self) -> None:
        """Map the page into memory, which makes each access much faster.

        Raises:
            OSError: If the script has closed the descriptor, or the kernel refuses.
        """
        import mmap  # not built into Python

        _check(self._fd, PAGE_FILE)
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

    Until then, it is also the ``__getattr__`` of the module ``NAME``.
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
        if name == _LIBRARY:
            self._load()

    def _attribute(self, name: str) -> "Any":
        if name not in _NAMES:  # others look up e.g. ``__file__`` in all modules
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
                    setattr(self._module, name, None if name == "page" else _do_nothing)
            self._is_loaded = True
            if self in sys.meta_path:
                sys.meta_path.remove(self)


def _do_nothing(*_: object) -> None:
    pass


def _say(error: Exception) -> None:
    now = time.strftime("%H:%M:%S")
    os.write(2, f"{now} ft-run cannot watch this worker: {error!r}\n".encode())


def install_or_say(fd: int, stacks_fd: int, load: "Loader") -> None:
    """Watch this process, or log an error: the worker runs in any case."""
    try:
        install(fd, stacks_fd, load)
    except Exception as error:
        _say(error)


def install(fd: int, stacks_fd: int, load: "Loader") -> None:
    """Watch this process, unless another live process uses the same page.

    The caller can close both descriptors; ``load`` imports ``hook.py`` and returns its ``install``.

    Raises:
        OSError: If a descriptor is invalid, or the kernel refuses.
    """
    # A process may have inherited the variable without the descriptors.
    _check(fd, PAGE_FILE)
    _check(stacks_fd, STACKS_FILE)
    words = _Words(fd)
    if words[PID] and words[PID] != os.getpid() and os.path.exists(f"/proc/{words[PID]}"):
        return
    own = os.dup2(fd, _free(), inheritable=False)
    own_stacks = os.dup2(stacks_fd, _free(), inheritable=False)
    faulthandler.register(STACKS_SIGNAL, file=own_stacks, all_threads=True)
    _Hooks(Page(_Words(own), own, own_stacks), load)


def _check(fd: int, file: str) -> None:
    if not os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{file}"):
        raise OSError(f"descriptor {fd} is not the file that is shared with ft-run")


def _free() -> int:
    fd = _FD_MIN
    while True:
        try:
            os.fstat(fd)
        except OSError:
            return fd
        fd += 1
