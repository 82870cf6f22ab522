"""A worker that runs a function: ``python -u run_module.py api.worker_main FOLDER``.

It unpickles the function as a child of multiprocessing's ``spawn`` would, with the main module of
the calling program imported under another name, and leaves the result in the folder of the call.
What the function raises is recorded as by torch's ``@record``.
"""

import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from multiprocessing import spawn
from typing import Any

from .exchange import read_call, write_result


def main(words: Sequence[str]) -> int:
    """Run the call of a folder, the only word, and write its result."""
    (folder,) = words
    try:
        call = read_call(folder, _prepare)
        write_result(folder, call.function(*call.args))
    except Exception as error:
        _record(error)
        raise
    return 0


def _prepare(caller: dict[str, Any]) -> None:
    """Become like the calling process: path, arguments, folder, main module."""
    process = multiprocessing.current_process()
    # A main module without `if __name__ == "__main__"` would launch again while it is imported.
    process._inheriting = True  # type: ignore[attr-defined]  # as multiprocessing itself does
    try:
        spawn.prepare(caller)
    finally:
        del process._inheriting  # type: ignore[attr-defined]  # as above


def _record(error: Exception) -> None:
    """Write the error file in torch's form, unless the function's own ``@record`` has done so."""
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
