"""Requests dumps of NCCL's flight recorder, for the verdict on a hang and for the user.

torch keeps the last collectives in memory. A process dumps them to a file when they time out, which
a worker that is stopped before then never does, or on request. Since torch 2.15 the requests go to
a server (``control_plane.py``). The backends of older versions read a pipe:
``TORCH_NCCL_DEBUG_INFO_PIPE_FILE`` is the prefix of its name, and each rank polls it once per
second (``DumpPipe`` in torch's ``ProcessGroupNCCL.hpp``). It answers each request, with the same
file, until a collective has timed out (``dumpDebuggingInfo`` in ``ProcessGroupNCCL.cpp``). SIGTERM
ends the process immediately, so the request must precede it.
"""

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress

from msgspec import Struct

from ...training.worker.recorders import SOCKETS
from .control_plane import signature

PIPES = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
VARIABLES = (_SIZES[0], PIPES, _FILES[0], SOCKETS)
"""The variables that ``record_collectives`` may set; torch's exist since 2.9."""


class _Dump(Struct):
    before: tuple[int, int] | None
    seen: tuple[int, int] | None
    is_written: bool = False


def record_collectives(environ: MutableMapping[str, str]) -> str:
    """Turn on recorders that the user has not set; return a directory for their files.

    torch keeps the last 2,000 collectives by default, but dumps them on request only with a pipe or
    a socket.

    Raises:
        OSError: If no directory can be created.
    """
    folder = tempfile.mkdtemp(prefix="ft-run-collectives-")
    if not any(name in environ for name in _SIZES):
        environ[_SIZES[0]] = "2000"
    environ.setdefault(PIPES, f"{folder}/rank_")
    if not any(environ.get(name) for name in _FILES):
        environ[_FILES[0]] = f"{folder}/dump_"
    environ[SOCKETS] = f"{folder}/c"
    return folder


class FlightRecorders:
    """The flight recorders of the ranks of one round that read a pipe."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._pipes = environ.get(PIPES, "")
        cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
        named = [environ[name] for name in _FILES if environ.get(name)]
        self.files = named[0] if named else f"{cache}/torch/comm_lib_trace_rank_"
        """The prefix of the files' names; the rank follows."""
        self._dumps: dict[int, _Dump] = {}

    def ask(self, ranks: Iterable[int]) -> bool:
        """Request dumps of ranks; return whether any rank reads its pipe."""
        for rank in ranks if self._pipes else ():
            before = signature(f"{self.files}{rank}")
            if _write_to_pipe(f"{self._pipes}{rank}.pipe"):
                self._dumps[rank] = _Dump(before, before)
        return bool(self._dumps)

    def look(self) -> None:
        """Poll the files. One is complete if it is new, and has not changed since the last poll."""
        for rank, dump in self._dumps.items():
            found = signature(f"{self.files}{rank}")
            dump.is_written = found not in (None, dump.before) and found == dump.seen
            dump.seen = found

    @property
    def written(self) -> tuple[int, ...]:
        """The ranks whose files are complete, as of the last poll."""
        return tuple(rank for rank, dump in self._dumps.items() if dump.is_written)


def _write_to_pipe(path: str) -> bool:
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return stat.S_ISFIFO(os.fstat(fd).st_mode) and bool(os.write(fd, b"1"))
        finally:
            os.close(fd)
    return False
