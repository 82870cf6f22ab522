"""The agent's side of the saver: starts the process when needed, and ends it."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from ..processes import RUN_MODULE
from ..processes.ipc import Incoming, send
from ..processes.typed_messages import as_json, reader
from .order import WriteOrder, WriteResult


class SaverClient:
    """The saver of a node. Not thread-safe."""

    def __init__(self) -> None:
        self._process: _Process | None = None

    @property
    def pid(self) -> int | None:
        """Return the saver's process ID; None if it does not run."""
        return self._process.pid if self._process is not None else None

    async def write(self, order: WriteOrder, fds: Sequence[int]) -> WriteResult:
        """Write a checkpoint from the buffers of its shards. Only one call at a time.

        If the saver is killed, a new one retries once; a checkpoint of several nodes is given up.
        The caller closes ``fds``, the buffers.
        """
        written = await self._ask(order, fds)
        if self._process is not None:
            return written
        if order.is_whole:
            return await self._ask(order, fds)
        # Otherwise the other nodes would wait for this node's shards.
        await self._ask(replace(order, given_up=written.error), fds)
        return written

    async def _ask(self, order: WriteOrder, fds: Sequence[int]) -> WriteResult:
        """Send the order once; without an answer, end the process and return an error."""
        try:
            if self._process is None:
                self._process = _Process()
            answer = await self._process.ask(order, fds)
        except OSError as error:
            self.close()
            return WriteResult(f"cannot start the saver process: {error.strerror}")
        if answer is None:
            self.close()
            return WriteResult("the saver process was killed")
        return answer

    def close(self) -> None:
        """Kill the saver."""
        if self._process is not None:
            self._process.close()
            self._process = None


class _Process:
    """A running saver process, started with ``exec``: gRPC does not support fork.

    Raises:
        OSError: If no process or no descriptor is available.
    """

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        argv = (
            sys.executable,
            RUN_MODULE,
            "saver.process",
            str(theirs.fileno()),
            str(os.getpid()),
        )
        with theirs:
            theirs.set_inheritable(True)
            try:
                self.pid = os.posix_spawn(sys.executable, argv, os.environ)
                self._pidfd = os.pidfd_open(self.pid)
            except OSError:
                self._channel.close()
                raise
        self._incoming = Incoming[WriteResult](self._channel, reader(WriteResult))
        self._answers: asyncio.Queue[WriteResult | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._channel.fileno(), self._readable)

    async def ask(self, order: WriteOrder, fds: Sequence[int]) -> WriteResult | None:
        """Return the answer; None if the process has exited."""
        self._channel.setblocking(True)  # the saver is reading: this does not block for long
        try:
            send(self._channel, as_json(order), fds)
        except ConnectionError:
            return None
        finally:
            self._channel.setblocking(False)
        return await self._answers.get()

    def close(self) -> None:
        """Kill it without waiting: it may be in uninterruptible sleep."""
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        with suppress(ChildProcessError):  # reaped as an unknown child
            os.waitpid(self.pid, os.WNOHANG)

    def _readable(self) -> None:
        messages = self._incoming.receive()
        if messages is None:
            self._loop.remove_reader(self._channel.fileno())
        for message in [None] if messages is None else messages:
            self._answers.put_nowait(message)
