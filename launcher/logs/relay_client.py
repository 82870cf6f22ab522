"""The agent's side of the relay: starts it, gives it streams, learns when they are written.

The relay must be started before the agent has threads or has loaded gRPC, because it is forked.
Everything that the agent forks later must close ``RelayClient.fileno()``: the relay sees that
its agent is gone when the last copy of that descriptor is closed. Likewise, a stream ends when
the last copy of its write end is closed; the agent closes its own once the worker has it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ...errors import NoProcessError
from ...events import LogFileEnded, OutputUnshown, RelayFull, RelayLost, RelayReplaced
from ...values import dataclass
from ..machine.shortage import no_process
from . import relay
from .log_dir import open_log
from .relay_stream import StreamOrder

if TYPE_CHECKING:
    import asyncio

_RUN_MODULE: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "processes", "run_module.py"
)
_PACKET_MAX_BYTES: Final = 256 * 1024
_SEND_TIMEOUT_S: Final = 5.0
"""The relay always reads at once; one that does not for so long is stuck in the kernel."""


RelayEvent = LogFileEnded | OutputUnshown | RelayFull | RelayLost | RelayReplaced


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A stream that the relay reads: its number, and the descriptor for the worker."""

    number: int
    write_fd: int


def start_relay(tell: Callable[[RelayEvent], None]) -> "RelayClient":
    """Fork the relay, with this process's standard output and error as its console.

    ``tell`` is called when a log file had to end (disk full), output could not be shown, or the
    relay itself was lost. Raises ``NoProcessError`` if no process can be started.
    """
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise NoProcessError(f"{no_process(error)}.") from error
    # No signal may reach the child while it still has the agent's handlers.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            relay.run_in_child(theirs)
    except OSError as error:
        ours.close()
        raise NoProcessError(f"{no_process(error)}.") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
    return RelayClient(pid, ours, tell)


class RelayClient:
    """The relay as the agent sees it. Make it with ``start_relay``; not thread-safe."""

    def __init__(
        self, pid: int, control: socket.socket, tell: Callable[[RelayEvent], None]
    ) -> None:
        self.pid = pid
        self.is_lost = False
        """Whether the relay is gone: closed or killed."""
        self._control = control
        self._tell = tell
        self._is_closing = False
        self._count = 0
        self._open: set[int] = set()
        self._tails: dict[int, bytes] = {}
        self._tail_answers: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lost_loop: asyncio.AbstractEventLoop | None = None
        """The loop that received from a relay that is lost."""
        self._waiters: set[asyncio.Future[None]] = set()
        control.setblocking(False)

    def fileno(self) -> int:
        """Return the control descriptor: readable when ``receive`` has something to do."""
        return self._control.fileno()

    def attach(self, loop: "asyncio.AbstractEventLoop") -> None:
        """Let ``loop`` receive the relay's events. The awaiting methods do it by themselves."""
        if self._loop is not loop:
            self.detach()
            if not self.is_lost:
                self._loop = loop
                loop.add_reader(self._control.fileno(), self.receive)

    def detach(self) -> None:
        """Stop receiving events in the loop that ``attach`` was given."""
        if self._loop is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._control.fileno())
            self._loop = None

    def add_stream(self, order: StreamOrder) -> OpenStream:
        """Make a pipe for one stream of a worker and give its read end to the relay.

        The caller closes ``write_fd`` when the worker has it. A relay that has been lost is
        replaced. If it cannot be, the worker gets the log file itself (or the agent's own stream
        where there is none): its output is kept, only without tee. Raises ``OSError`` if
        descriptors or disk run out.
        """
        self._count += 1
        number = self._count
        for _ in range(2):
            if self.is_lost and not self._is_closing:
                self._replace()
            if (stream := self._relayed(number, order)) is not None:
                return stream
        self._tails[number] = b""
        if order.log_path is not None:
            return OpenStream(number, open_log(order.log_path))
        return OpenStream(number, os.dup(1 if order.stream.value == "stdout" else 2))

    def _relayed(self, number: int, order: StreamOrder) -> OpenStream | None:
        """Return a pipe to the relay; None where it is lost."""
        if self.is_lost:
            return None
        read_fd, write_fd = os.pipe()
        try:
            if self._send(relay.encode_order(number, order), [read_fd]):
                self._open.add(number)
                return OpenStream(number, write_fd)
        finally:
            os.close(read_fd)
        os.close(write_fd)
        return None

    def receive(self) -> None:
        """Take one event from the relay; returns at once if there is none."""
        try:
            packet = self._control.recv(_PACKET_MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            self._handle(json.loads(packet))
            self._wake()
        else:
            self._lose()

    async def drained(self, numbers: Iterable[int], timeout_s: float) -> frozenset[int]:
        """Wait until the streams have ended, are written and shown; return those that are not."""
        wanted = frozenset(numbers)
        await self._until(lambda: not wanted & self._open, timeout_s)
        return wanted & self._open

    async def tail(self, number: int, timeout_s: float) -> bytes:
        """Return the last bytes of a standard error stream, also while it is open.

        Everything that was in the pipe when this was called counts. Empty where the relay does
        not answer in time.
        """
        if number in self._open:
            self._tail_answers.discard(number)
            self._send(json.dumps({"tail": number}).encode(), [])
            await self._until(
                lambda: number in self._tail_answers or number not in self._open, timeout_s
            )
        return self.last_tail(number)

    def last_tail(self, number: int) -> bytes:
        """Return the last bytes of a standard error stream as last reported."""
        return self._tails.get(number, b"")

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop what is kept about streams of an attempt that has been reported."""
        for number in numbers:
            self._tails.pop(number, None)
            self._tail_answers.discard(number)

    async def aclose(self, timeout_s: float) -> bool:
        """Tell the relay to end once everything is written; return whether it did in time.

        A relay that did not is left to finish alone: it goes when its pipes are at their end
        or nothing has moved for a few seconds.
        """
        self._begin_close()
        try:
            await self._until(lambda: self.is_lost, timeout_s)
        finally:
            has_ended = self._finish_close()
        return has_ended

    def _begin_close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def _finish_close(self) -> bool:
        self.detach()
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0 if self.is_lost else os.WNOHANG)
        has_ended, self.is_lost = self.is_lost, True
        return has_ended

    def _handle(self, event: dict[str, Any]) -> None:
        if "closed" in event:
            self._open.discard(event["closed"])
            self._tails[event["closed"]] = event["tail"].encode("latin-1")
        elif "tail" in event:
            self._tails[event["tail"]] = event["text"].encode("latin-1")
            self._tail_answers.add(event["tail"])
        elif "unshown" in event:
            self._tell(OutputUnshown(event["unshown"]))
        elif "ended" in event:
            self._tell(LogFileEnded(event["ended"], event["reason"]))
        else:
            self._tell(RelayFull())

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost, self._lost_loop = True, self._loop
        self.detach()
        self._wake()
        if not self._is_closing:
            self._tell(RelayLost(self.pid, len(self._open)))

    def _replace(self) -> None:
        """Start another relay: by ``exec``, since this process may have threads by now."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        os.set_inheritable(theirs.fileno(), True)
        argv = (sys.executable, _RUN_MODULE, "logs.relay", str(theirs.fileno()))
        with theirs:
            try:
                pid = os.posix_spawn(sys.executable, argv, os.environ)
            except OSError:
                ours.close()
                return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self._control.close()
        self._control, self.pid = ours, pid
        ours.setblocking(False)
        self._open.clear()
        self.is_lost = False
        if self._lost_loop is not None and not self._lost_loop.is_closed():
            self.attach(self._lost_loop)
        self._tell(RelayReplaced(pid))

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _send(self, packet: bytes, fds: list[int]) -> bool:
        """Send one packet; return False if the relay is gone or does not take it."""
        deadline = time.monotonic() + _SEND_TIMEOUT_S
        while not self.is_lost:
            if self._try_send(packet, fds):
                return True
            if not _wait_for(self._control, select.POLLOUT, deadline):
                break
        return False

    def _try_send(self, packet: bytes, fds: list[int]) -> bool:
        try:
            socket.send_fds(self._control, [packet], fds)
        except BlockingIOError:
            return False
        except ConnectionError:
            self._lose()
            return False
        return True

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        self.attach(loop)
        deadline = loop.time() + timeout_s
        while not condition() and not self.is_lost:
            left = deadline - loop.time()
            if left <= 0:
                return
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait((waiter,), timeout=left)
            finally:
                self._waiters.discard(waiter)


def _wait_for(control: socket.socket, event: int, deadline: float) -> bool:
    """Wait until the socket is ready; return False when ``deadline`` (monotonic) has passed."""
    poll = select.poll()
    poll.register(control, event)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
