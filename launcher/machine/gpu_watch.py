"""Queries NVIDIA's driver and receives its Xid errors through one process per agent.

A separate process, because a driver that hangs must not stop the agent. The same one for all
rounds, because a new one would add 0.2 to 0.5 s to each restart, and the driver reports Xid errors
only to registered listeners.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from . import nvml

Used = Mapping[str, int]
"""Bytes in use, by UUID or PCI address of the GPU."""

_DIES_S: Final = 1.0


class _Line(Struct, frozen=True):
    """A line of the process: an error of a GPU (index, UUID, number), an answer, or an error."""

    xid: tuple[int, str, int] | None = None
    answer: Used | None = None
    error: str = nvml.NO_ANSWER


class GpuWatch:
    """The process that queries the driver. The first query starts it.

    ``xid`` is called with index and UUID of a GPU and the number of its Xid error.
    """

    def __init__(
        self, xid: Callable[[int, str, int], object], command: Sequence[str] = nvml.WATCH
    ) -> None:
        self._xid, self._command = xid, command
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._answer: asyncio.Future[_Line] | None = None

    async def used(self) -> Used:
        """Return the bytes in use on the GPUs that workers can see. Only one call at a time.

        Raises:
            NvmlFailedError: If there is no answer in time, or it is an error.
        """
        self._answer = asyncio.get_running_loop().create_future()
        try:
            if self._process is None:
                self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its last output is read below
                self._process.stdin.write(b"\n")
            line = await asyncio.wait_for(self._answer, nvml.DEADLINE_S)
        except asyncio.TimeoutError:  # an OSError from Python 3.11 on
            self.close()
            raise nvml.NvmlFailedError("the driver hangs") from None
        except OSError as error:
            self.close()
            raise nvml.NvmlFailedError(error.strerror or str(error)) from error
        finally:
            self._answer = None
        if line.answer is None:
            raise nvml.NvmlFailedError(line.error)
        return line.answer

    def _start(self) -> None:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        # asyncio's Process would warn if the agent, which reaps every child, reaps this one first.
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=nothing, bufsize=0
        )
        assert self._process.stdout is not None
        output, self._rest = self._process.stdout.fileno(), b""
        asyncio.get_running_loop().add_reader(output, self._readable, output)

    def _readable(self, output: int) -> None:
        data = os.read(output, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):  # a library has printed it
                self._take(msgspec.json.decode(line, type=_Line))
        if not data:
            self._take(_Line())
            self.close()

    def _take(self, line: _Line) -> None:
        if line.xid is not None:
            self._xid(*line.xid)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(line)

    def close(self) -> None:
        """Kill the process. It may hang in the driver, so the wait for its exit is short."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        asyncio.get_running_loop().remove_reader(process.stdout)
        process.stdout.close()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DIES_S)
