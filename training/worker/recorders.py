"""Lets the agent request the records of collectives of this worker's backends.

Since torch 2.15, a hook of torch records collectives of NCCL's backends, and only torch's own
control-plane server can dump them at any time: an HTTP server on a Unix socket, in a C++ thread
that does not need the interpreter's lock. It is started with the first such process group, in the
worker's own process. Older versions of torch have neither.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .page_layout import BACKENDS_AT, BACKENDS_BYTES, read_text, write_text
from .patching import take_name
from .start import Page

SOCKETS = "FT_RUN_RECORDER_SOCKETS"
"""Variable with the prefix of the socket's path; the process ID follows."""
_ON_CPU = frozenset({"gloo", "mpi", "ucc", "fake", "undefined"})
"""Backends whose waits are visible in the stacks."""
_HANDLER = "fr_dump_file"
_LINES = b"WorkerServer.cpp"
_PATH_MAX_BYTES = 107
_MORE = "..."


def note_backends(c10d: Any, page: Page) -> None:
    """Record the backend of each new process group; start the server for the first."""
    attach = getattr(c10d, "_maybe_attach_flight_recorder", None)
    if attach is None:
        return  # before torch 2.15
    noted: set[str] = set()

    def attach_and_note(group: Any, *arguments: Any, **named: Any) -> Any:
        attached = attach(group, *arguments, **named)
        with suppress(Exception):  # training does not need records
            new = _backends(group) - noted
            if new and page.is_own():
                noted.update(new)
                write_backends(page.words, noted)
                serve()
        return attached

    take_name(attach_and_note, attach)
    c10d._maybe_attach_flight_recorder = attach_and_note


def _backends(group: Any) -> set[str]:
    return {group._get_backend(kind).name() for kind in group._device_types} - _ON_CPU


def write_backends(words: Any, names: set[str]) -> None:
    """Write the names of backends to the page."""
    text = "".join(f"{name} " for name in sorted(names)).encode(errors="replace")
    if len(text) >= BACKENDS_BYTES:  # the last one stands for a backend without a dump
        text = text[: BACKENDS_BYTES - len(_MORE) - 2].rpartition(b" ")[0] + f" {_MORE} ".encode()
    write_text(words, BACKENDS_AT, BACKENDS_BYTES, text)


def read_backends(words: Any) -> tuple[str, ...]:
    """Return the names of backends in the page."""
    return tuple(read_text(words, BACKENDS_AT, BACKENDS_BYTES).split())


_servers: list[Any] = []


def serve() -> None:
    """Start torch's control-plane server for the agent, once, if it can dump records.

    A reference to it is leaked on purpose. Its destructor shuts the socket down, and a forked
    process inherits the object: at its normal exit it would stop this process's server, whose
    thread then aborts the training.
    """
    import torch._C._distributed_c10d  # the script has loaded it

    c10d: Any = torch._C._distributed_c10d
    path = f"{os.environ.get(SOCKETS, '')}{os.getpid()}"
    if _servers or SOCKETS not in os.environ or len(os.fsencode(path)) > _PATH_MAX_BYTES:
        return
    if _HANDLER not in c10d._get_handler_names():
        return
    with suppress(FileNotFoundError):
        os.unlink(path)
    with _quiet():
        _servers.append(c10d._WorkerServer(path))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_servers[0]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Remove only the server's own lines from standard error."""
    sys.stderr.flush()
    own = os.dup(2)
    caught = os.memfd_create("ft-run-lines")
    try:
        os.dup2(caught, 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.lseek(caught, 0, os.SEEK_SET)
            with open(caught, "rb", closefd=False) as file:
                for line in file:
                    if _LINES not in line:
                        os.write(2, line)
    finally:
        os.close(caught)
        os.close(own)
