"""The agent's side of the relay: starts it, passes streams to it, and receives their end.

A stream ends when the last copy of its write end is closed; the agent closes its copy when the
worker has the descriptor.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from ...errors import NoProcessError
from ...events.event import Event
from ...events.output import LogFileEnded, OutputUnshown, RelayLost
from ..machine.shortage import no_process
from ..processes import RUN_MODULE
from .log_file import Stream, StreamPlan, open_log
from .relay import PACKET_MAX_BYTES, encode_order

_SEND_TIMEOUT_S: Final = 5.0
"""The relay normally reads immediately; after this time it is stuck in the kernel."""


class OpenStream(Struct, frozen=True):
    """A stream that the relay reads: its number, and the descriptor for the worker."""

    number: int
    write_fd: int


class RelayClient:
    """The relay from the agent's point of view. Not thread-safe."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        """Start a relay, with this process's standard output and error as its console.

        It is executed, not forked, because this process may have threads. ``tell`` is called if a
        log file ended early (full disk), output could not be shown, or the relay was lost. Raises
        ``NoProcessError`` if no process can be started.
        """
        self._tell = tell
        self._is_closing = False
        self._count = 0
        self._open: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self.is_lost = False
        """Whether the relay has exited: closed or killed."""
        self.was_killed = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.set_inheritable(theirs.fileno(), True)
        # Without `site`: it needs only the standard library, and starts in half the time.
        argv = (sys.executable, "-S", RUN_MODULE, "logs.relay", str(theirs.fileno()))
        # No signal may end it before it ignores the ones meant for workers.
        blocked = signal.valid_signals()
        with theirs:
            try:
                self.pid = os.posix_spawn(sys.executable, argv, os.environ, setsigmask=blocked)
            except OSError as error:
                ours.close()
                raise NoProcessError(f"{no_process(error)}.") from error
        ours.setblocking(False)
        self._control = ours

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let ``loop`` receive the relay's events. The awaiting methods do this automatically."""
        if loop is not self._loop:
            self._ignore()
            self._changed = asyncio.Event()
        self._loop = loop
        if not self.is_lost:
            loop.add_reader(self._control, self._receive)

    def _ignore(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._control)

    def add_stream(self, stream: Stream, prefix: bytes, plan: StreamPlan) -> OpenStream:
        """Create a pipe for one stream of a worker and pass its read end to the relay.

        The caller closes ``write_fd`` when the worker has it. If the relay is lost, the worker gets
        the log file itself (or, without one, the agent's own stream), without tee. Raises
        ``OSError`` if descriptors or disk space run out.
        """
        self._count += 1
        number = self._count
        read_fd, write_fd = os.pipe()
        try:
            if self._send(encode_order(number, stream, prefix, plan), [read_fd]):
                self._open.add(number)
                return OpenStream(number, write_fd)
        finally:
            os.close(read_fd)
        os.close(write_fd)
        if plan.path is not None:
            return OpenStream(number, open_log(plan.path))
        return OpenStream(number, os.dup(1 if stream is Stream.STDOUT else 2))

    async def drained(self, numbers: Iterable[int], timeout_s: float) -> frozenset[int]:
        """Wait until the streams have ended and are written and shown; return the others."""
        wanted = frozenset(numbers)
        await self._until(lambda: not wanted & self._open, timeout_s)
        return wanted & self._open

    async def aclose(self, timeout_s: float) -> bool:
        """Tell the relay to exit once everything is written; return whether it did in time.

        If not, it exits on its own after its pipes have ended, or some seconds without progress.
        """
        self._is_closing = True
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            await self._until(lambda: self.is_lost, timeout_s)
        finally:
            self._ignore()
            self._control.close()
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0 if self.is_lost else os.WNOHANG)  # noqa: ASYNC222 - it ends
            has_ended, self.is_lost = self.is_lost, True
        return has_ended

    def _receive(self) -> None:
        try:
            packet = self._control.recv(PACKET_MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            self._handle(json.loads(packet))
            self._changed.set()
        else:
            self._lose()

    def _handle(self, event: dict[str, Any]) -> None:
        match event:
            case {"closed": number}:
                self._open.discard(number)
            case {"unshown": count}:
                self._tell(OutputUnshown(count))
            case {"ended": path, "reason": reason}:
                self._tell(LogFileEnded(path, reason))

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._ignore()
        self._changed.set()
        if not self._is_closing:
            self.was_killed = True
            self._tell(RelayLost(self.pid, len(self._open)))

    def _send(self, packet: bytes, fds: Iterable[int] = ()) -> bool:
        if self.is_lost:
            return False
        self._control.settimeout(_SEND_TIMEOUT_S)
        try:
            socket.send_fds(self._control, [packet], [*fds])
        except TimeoutError:
            return False
        except ConnectionError:
            self._lose()
            return False
        finally:
            self._control.setblocking(False)
        return True

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.attach(loop)
        deadline = loop.time() + timeout_s
        while not condition() and not self.is_lost and (left_s := deadline - loop.time()) > 0:
            self._changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
