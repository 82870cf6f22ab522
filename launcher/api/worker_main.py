"""A worker that runs a function: ``python -u run_module.py api.worker_main FOLDER``.

It unpickles the function like a child of multiprocessing's ``spawn``, with the main module of the
calling program imported under another name, and writes the result to the directory of the call. An
exception of the function is recorded as by torch's ``@record``.

After its function has returned, a worker waits for the functions of the other workers of this node,
because rank 0 may host the store that they need. Then it ends like a forked child of
multiprocessing, without finalizing the interpreter: a process group that was not destroyed has
threads, and a thread that needs the interpreter at that moment aborts the process.
"""

import atexit
import ctypes
import fcntl
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import spawn
from typing import Any, NoReturn

from .exchange import read_call, write_result


def main(words: Sequence[str]) -> NoReturn:
    """Run the call in a directory, the only argument, and write its result; exit with 0."""
    (folder,) = words
    others = _Others(folder)
    try:
        function, args = read_call(folder, _prepare)
        write_result(folder, function(*args))
    except Exception as error:
        _record(error)
        raise
    others.await_return()
    _end()


class _Others:
    """The workers of this node; each locks its byte of a file until it has returned.

    The kernel releases the locks of a process that dies; its children do not inherit them.
    """

    def __init__(self, folder: str) -> None:
        self._file = os.open(os.path.join(folder, "running"), os.O_RDWR | os.O_CREAT, 0o600)
        self._byte = int(os.environ["RANK"])
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._byte)

    def await_return(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._byte)
        fcntl.lockf(self._file, fcntl.LOCK_SH, int(os.environ["WORLD_SIZE"]))
        fcntl.lockf(self._file, fcntl.LOCK_UN)


def _end() -> NoReturn:
    """Run exit handlers, flush the streams and exit with 0."""
    status = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing itself does
        atexit._run_exitfuncs()  # as above
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # the function has closed it
                stream.flush()
        ctypes.CDLL(None).fflush(None)  # output of C++
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _prepare(caller: dict[str, Any]) -> None:
    """Copy path, arguments, directory and main module from the calling process."""
    process = multiprocessing.current_process()
    # A main module without `if __name__ == "__main__"` would launch again while it is imported.
    process._inheriting = True  # type: ignore[attr-defined]  # as multiprocessing itself does
    try:
        spawn.prepare(caller)
    finally:
        del process._inheriting  # type: ignore[attr-defined]  # as above


def _record(error: Exception) -> None:
    """Write the error file in torch's format, unless the function's ``@record`` has done so."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    stack = "".join(traceback.format_exception(error))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    content = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
    try:
        with open(path, "x", encoding="utf-8") as file:
            json.dump(content, file)
    except OSError:  # there is one, or the disk is full: the traceback is on standard error too
        return
