"""The agent's view of NVIDIA's driver: one process that stays, asks it, and hears of its errors.

A process of its own, since a driver that hangs must not stop the agent; one for all rounds, since a
new one would take 0.2 to 0.5 s of each restart, and Xid errors are reported to listeners only.
"""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from . import nvml

Used = Mapping[str, int]
"""Bytes in use, by the UUID of the GPU, or its PCI address."""

_DIES_S: Final = 1.0


class GpuWatch:
    """The process; it is started by the first question."""

    def __init__(
        self, xid: Callable[[int, str, int], object], command: Sequence[str] = nvml.WATCH
    ) -> None:
        """Start nothing yet.

        Args:
            xid: is called with index and UUID of a GPU and the number of its error.
            command: of the process.
        """
        self._xid, self._command = xid, command
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.ReadTransport | None = None
        self._answer: asyncio.Future[bytes] | None = None

    async def used(self) -> Used:
        """Return what is in use on the GPUs that the workers can see. One caller at a time.

        Raises:
            NvmlFailedError: there is no answer, or not in time.
        """
        self._answer = asyncio.get_running_loop().create_future()
        try:
            if self._process is None:
                await self._start()
            assert self._process is not None
            assert self._process.stdin is not None
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
        used: Used = nvml.answer_of(line)
        return used

    async def _start(self) -> None:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        # asyncio's Process would warn if the agent, which reaps every child, is faster.
        process = subprocess.Popen(  # noqa: ASYNC220 - to start it takes no longer than asyncio's
            self._command, stdin=pipe, stdout=pipe, stderr=nothing, bufsize=0
        )
        self._process = process
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _Lines(self._line, lambda: self._ended(process)), process.stdout
        )

    def _line(self, line: bytes) -> None:
        try:
            number, uuid, xid = json.loads(line)["xid"]
        except (ValueError, KeyError):
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(line)
        else:
            self._xid(number, uuid, xid)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        if process is self._process:
            self._line(b"")  # no answer
            self.close()

    def close(self) -> None:
        """End the process, also one that hangs in the driver; that is not waited for."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._transport is not None:
            self._transport.close()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.kill()
        deadline = time.monotonic() + _DIES_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)


class _Lines(asyncio.Protocol):
    """Splits what a pipe delivers into lines."""

    def __init__(self, line: Callable[[bytes], object], ended: Callable[[], object]) -> None:
        self._on_line, self._on_end, self._rest = line, ended, b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(line)

    def connection_lost(self, _: Exception | None) -> None:
        self._on_end()
