"""Runs in a worker: writes the exception that ends it to torch's error file, like ``@record``.

It receives the exceptions of ``sys.excepthook`` and ``threading.excepthook``, and calls the
previous hook. A hook that the script sets later replaces it, or chains to it.

- An exception that the interpreter reports as the end of the program goes to the error file, unless
  other code (``@record``) has written it.
- An exception that does not end the process goes to a second file: an exception of a thread, or one
  that the program itself passes to ``sys.excepthook``. The agent reads that file if the process
  ends soon after.

This file is also run by path, in interpreters without ft-run, so it imports nothing of ft-run.
Until there is an exception, it imports only modules that every interpreter has loaded, so not
``typing``.
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

SURVIVED_SUFFIX = ".survived"
"""Suffix of the second file's name after the name of the error file."""
SURVIVED_S = 5
"""A process that ends within this time after an exception has not survived it."""

_MESSAGE_MAX_CHARS = 8 * 1024
_STACK_MAX_CHARS = 64 * 1024
"""With six bytes per character, as JSON may need, the agent still reads the whole file."""


class _ErrorFile:
    """A file for the exception of this process; forked children do not write to it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._written: tuple[int, ...] | None = None
        """State of the file after this process had written it."""

    def write(
        self, kind: "type[BaseException]", error: "BaseException", trace: "TracebackType | None"
    ) -> None:
        """Write an exception; overwrite only this process's own."""
        try:
            # As with `@record`: an exit has no exception, and an interrupt ends the process by
            # SIGINT. The interpreter would forget that during the imports below.
            if os.getpid() != self._pid or issubclass(kind, (SystemExit, KeyboardInterrupt)):
                return
            data = _as_json(kind, error, trace)
            is_own = self._written is not None and self._written == self._state()
            how = os.O_TRUNC if is_own else os.O_CREAT | os.O_EXCL
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | how, 0o666)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
            self._written = self._state()
        except Exception:
            return  # it exists, or the disk is full; the traceback is on standard error anyway

    def _state(self) -> "tuple[int, ...] | None":
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def install_or_say(path: str) -> None:
    """Install the hooks if there is an error file; log an error instead of raising it."""
    try:
        if path:
            install(path)
    except Exception as error:
        now = time.strftime("%H:%M:%S")
        os.write(2, f"{now} ft-run cannot capture exceptions of this worker: {error!r}\n".encode())


def install(path: str) -> None:
    """Install the hooks in this process."""
    survived = _ErrorFile(path + SURVIVED_SUFFIX)
    _install_for_program(_ErrorFile(path), survived)
    _install_for_threads(survived)


def _install_for_program(ends: _ErrorFile, survived: _ErrorFile) -> None:
    previous = sys.excepthook

    def excepthook(
        kind: "type[BaseException]", error: "BaseException", trace: "TracebackType | None"
    ) -> None:
        # The interpreter sets this before it calls the hook; a program that calls it need not end.
        is_end = any(getattr(sys, name, None) is error for name in ("last_value", "last_exc"))
        (ends if is_end else survived).write(kind, error, trace)
        previous(kind, error, trace)

    if previous is sys.__excepthook__:
        # Libraries compare the two to see whether a hook is set, and call this one from their own.
        sys.__excepthook__ = excepthook
    sys.excepthook = excepthook


def _install_for_threads(survived: _ErrorFile) -> None:
    # `threading`, which need not be loaded yet, takes its hook from here.
    threading: Any = sys.modules.get("threading")
    previous: Any = _thread._excepthook if threading is None else threading.excepthook

    def excepthook(of: "Any") -> None:
        survived.write(of.exc_type, of.exc_value, of.exc_traceback)
        previous(of)

    if threading is None:
        _thread._excepthook = excepthook
        return
    if previous is threading.__excepthook__:
        threading.__excepthook__ = excepthook
    threading.excepthook = excepthook


def _as_json(
    kind: "type[BaseException]", error: "BaseException", trace: "TracebackType | None"
) -> bytes:
    """Return the content that ``@record`` would write, bounded."""
    import traceback  # only with an exception
    from _json import encode_basestring_ascii as quoted  # a script may have its own `json`

    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"  # as in the traceback
    message = f"{kind.__name__}: {text}" if text else kind.__name__
    stack = "".join(traceback.format_exception(kind, error, trace))
    return (
        f'{{"message": {{"message": {quoted(message[:_MESSAGE_MAX_CHARS])}, "extraInfo": '
        f'{{"py_callstack": {quoted(stack[-_STACK_MAX_CHARS:])}, '
        f'"timestamp": "{int(time.time())}"}}}}}}'
    ).encode()
