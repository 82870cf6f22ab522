"""The agent's view of NVIDIA's driver: one process that stays, asks it, and hears of its errors.

A process of its own, since a driver that hangs must not stop the agent; one for all rounds, since a
new one would take 0.2 to 0.5 s of each restart, and Xid errors are reported to listeners only.
"""

import asyncio
import contextlib
import json
import os
import subprocess
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
        self._rest = b""
        self._answer: asyncio.Future[bytes] | None = None

    async def used(self) -> Used:
        """Return what is in use on the GPUs that the workers can see. One caller at a time.

        Raises:
            NvmlFailedError: there is no answer, or not in time.
        """
        self._answer = asyncio.get_running_loop().create_future()
        try:
            if self._process is None:
                self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # what it has said is read below
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

    def _start(self) -> None:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        # asyncio's Process would warn if the agent, which reaps every child, is faster.
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
            self._line(line)
        if not data:
            self._line(b"")  # no answer
            self.close()

    def _line(self, line: bytes) -> None:
        try:
            number, uuid, xid = json.loads(line)["xid"]
        except (ValueError, KeyError):
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(line)
        else:
            self._xid(number, uuid, xid)

    def close(self) -> None:
        """End the process, also one that hangs in the driver; that is not waited for."""
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
