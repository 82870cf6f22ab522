"""Requests dumps of flight recorders from the control-plane server of a worker (torch 2.15).

``training/worker/recorders.py`` has started that server. It responds while the worker's main thread
holds the interpreter's lock. ``fr_dump_file`` writes the dump of one backend to a file, after the
response; the file is the same for all backends, so each dump is read before the next request. The
dump of NCCL's former library is in the response itself.
"""

import asyncio
import os
import socket
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from ...tasks import in_thread
from ...training.worker.recorders import SOCKETS
from . import recorded

DUMPS_S = 8.0
"""Time limit for all dumps of a worker, less than an inquiry into a hang takes."""
_POLL_S = 0.05
_ANSWER_MAX_BYTES = 64 << 20
_FORMER, _USUAL = "nccl", "nccl2"
_ERRORS = (OSError, EOFError, ValueError, IndexError, asyncio.TimeoutError)


class ControlPlane:
    """The servers of the workers of this node, and their dumps."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._sockets = environ.get(SOCKETS, "")
        self._asked: dict[int, asyncio.Task[Mapping[str, Any]]] = {}

    def ask(self, rank: int, pid: int, backends: Collection[str], file: str) -> bool:
        """Request the dumps of a worker; return whether its server accepts connections."""
        path = f"{self._sockets}{pid}"
        if not self._sockets or not _accepts(path):
            return False
        self._asked[rank] = asyncio.create_task(_dumps(path, backends, file))
        return True

    def finished(self) -> dict[int, Mapping[str, Any]]:
        """Return the dumps of ranks that have answered since the last call, by backend."""
        done = {rank: task for rank, task in self._asked.items() if task.done()}
        for rank in done:
            del self._asked[rank]
        return {rank: task.result() for rank, task in done.items()}

    def close(self) -> None:
        """Stop waiting for dumps."""
        for task in self._asked.values():
            task.cancel()


def _accepts(path: str) -> bool:
    with suppress(OSError), closing(socket.socket(socket.AF_UNIX)) as one:
        one.setblocking(False)
        one.connect(path)
        return True
    return False


async def _dumps(path: str, backends: Collection[str], file: str) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    # The usual backend comes last, because the file keeps the last dump.
    in_turn = sorted(backends, key=lambda name: (name == _USUAL, name))
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_collect(path, in_turn, file, found), DUMPS_S)
    return found


async def _collect(path: str, backends: Collection[str], file: str, found: dict[str, Any]) -> None:
    for backend in backends:
        with suppress(*_ERRORS, recorded.BadDumpError):
            if backend == _FORMER:
                data = await _post(path, "dump_nccl_trace_pickle?includestacktraces=false")
                found[backend] = await in_thread(partial(recorded.parse, data))
            else:
                before = signature(file)
                await _post(path, f"fr_dump_file?backend={quote(backend, safe='')}")
                found[backend] = await _written(file, before, backend)


async def _written(file: str, before: object, backend: str) -> Any:
    while True:
        if (now := signature(file)) not in (None, before):
            with suppress(recorded.BadDumpError):
                dump = await in_thread(partial(recorded.read, file))
                if recorded.backends_of(dump) <= {backend}:
                    return dump
            before = now  # it is incomplete, so it will change
        await asyncio.sleep(_POLL_S)


def signature(file: str) -> tuple[int, int] | None:
    """Return the modification time of a file and its size; None if there is no file."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size)


async def _post(path: str, target: str) -> bytes:
    """Return the content of the response to a request.

    Raises:
        OSError: If the connection fails.
        ValueError: If the response is an error, or not HTTP.
    """
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        request = f"POST /handler/{target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
        writer.write(f"{request}Connection: close\r\n\r\n".encode())
        data = bytearray()
        while len(data) < _ANSWER_MAX_BYTES and (more := await reader.read(1 << 16)):
            data += more
    finally:
        writer.close()
    head, _, content = bytes(data).partition(b"\r\n\r\n")
    if head.split(maxsplit=2)[1] != b"200":
        raise ValueError(head[:100])
    return content
