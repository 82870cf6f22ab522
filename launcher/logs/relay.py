"""The relay: a process that takes workers' output from pipes to log files and the console.

It is forked early from the agent, has one thread and knows only its streams. It outlives the agent
until all output of workers is written.

Agent and relay talk over a ``SOCK_SEQPACKET`` socket pair, one JSON object per packet; bytes
travel as Latin-1 text. To the relay: ``{"add": n, …}`` with the pipe's read end attached, and
``{"tail": n}``. From it: ``{"closed": n, "tail": …}`` when a stream has ended and all of it is
written and shown, ``{"tail": n, "text": …}``, ``{"ended": path, "reason": …}`` for a log
file, ``{"full": true}`` where no descriptor was left, and last, where
nothing read the console, ``{"unshown": bytes}``.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn

from .log_dir import Stream
from .relay_console import open_consoles
from .relay_stream import RelayedStream, StreamOrder

IDLE_EXIT_S: Final = 5.0
"""How long the relay runs without its agent while nothing arrives and nothing can be shown."""

_PACKET_MAX_BYTES: Final = 256 * 1024

# A signal to a whole job (from Slurm, a container runtime, a terminal) is meant for the workers.
_IGNORED_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)


def run_in_child(control: socket.socket) -> NoReturn:
    """Run the relay in a process that has just been forked; never returns.

    ``control`` is this side's end of the socket pair. The console is what the descriptors 1
    and 2 are.
    """
    status = 1
    try:
        _detach(control.fileno())
        Relay(control).run()
        status = 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def main(arguments: list[str]) -> NoReturn:
    """Run the relay of an agent that cannot fork any more, because it has threads.

    Args:
        arguments: the descriptor of this side's end of the socket pair.
    """
    run_in_child(socket.socket(fileno=int(arguments[0])))


def encode_order(number: int, order: StreamOrder) -> bytes:
    """Return the packet that asks the relay to take the attached pipe as stream ``number``."""
    message = {
        "add": number,
        "stream": order.stream.value,
        "prefix": order.prefix.decode("latin-1"),
        "console": order.console,
        "log_path": order.log_path,
        "filters": [needle.decode("latin-1") for needle in order.filters],
        "filtered_path": order.filtered_path,
    }
    return json.dumps(message).encode()


def _decode_order(message: dict[str, Any]) -> StreamOrder:
    return StreamOrder(
        stream=Stream(message["stream"]),
        prefix=message["prefix"].encode("latin-1"),
        console=message["console"],
        log_path=message["log_path"],
        filters=tuple(needle.encode("latin-1") for needle in message["filters"]),
        filtered_path=message["filtered_path"],
    )


def _detach(control: int) -> None:
    """Leave the agent's session, signals and files; keep the console and ``control``."""
    os.setsid()
    for signum in _IGNORED_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("ft-run-relay")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    # Listed rather than counted up: the limit can be a thousand million.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, control):
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.close(int(name))
    _raise_descriptor_limit()
    # No object of the agent may be collected here: it could close a number that is in use again.
    # It also leaves the pages that are shared with the agent alone.
    gc.freeze()


def _raise_descriptor_limit() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Relay:
    """The relay's loop: one chunk per ready stream and turn."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._epoll = select.epoll()
        self._streams: dict[int, RelayedStream] = {}
        self._handlers: dict[int, Callable[[], None]] = {control.fileno(): self._on_control}
        self._behind: dict[int, RelayedStream] = {}
        self._ended: dict[int, RelayedStream] = {}
        self._outbox: deque[bytes] = deque()
        self._has_agent = True
        self._consoles = open_consoles(self._epoll)
        for console in self._consoles.values():
            self._handlers[console.fd] = console.flush
        control.setblocking(False)
        self._interest = select.EPOLLIN
        self._epoll.register(control, self._interest)

    def run(self) -> None:
        """Work until the agent is gone and everything is written, or nothing can be written."""
        while self._has_agent or self._streams:
            events = self._epoll.poll(self._timeout_s())
            if not events and not self._may_catch_up():
                self._give_up()
                return
            for fd, _ in events:
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
            self._catch_up()
            self._report_written()
            self._send()

    def _give_up(self) -> None:
        """End without the agent.

        A process that outlived its job keeps a pipe open, or the console has stalled. What has
        arrived is in the files; unfinished lines are shown.
        """
        unshown = sum(stream.unshown for stream in self._streams.values())
        unshown += sum(console.unshown for console in {*self._consoles.values()})
        for stream in self._streams.values():
            if not stream.has_ended:
                stream.end()
        if unshown:
            self._post({"unshown": unshown})
            self._send()

    def _timeout_s(self) -> float | None:
        if self._may_catch_up():
            return 0.0
        return None if self._has_agent else IDLE_EXIT_S

    def _may_catch_up(self) -> bool:
        return any(stream.can_catch_up for stream in self._behind.values())

    def _catch_up(self) -> None:
        """Give every stream that is behind one turn; each then goes to the end of the queue."""
        for number, stream in list(self._behind.items()):
            if stream.can_catch_up:
                del self._behind[number]
                stream.catch_up()
                if stream.is_behind:
                    self._behind[number] = stream

    def _report_written(self) -> None:
        for number, stream in list(self._ended.items()):
            if stream.is_written():
                stream.close()
                del self._ended[number], self._streams[number]
                self._behind.pop(number, None)
                self._post({"closed": number, "tail": stream.tail.decode("latin-1")})

    def _on_pipe(self, stream: RelayedStream) -> None:
        stream.pump()
        if stream.is_behind:
            self._behind[stream.number] = stream
        if stream.has_ended:
            self._ended[stream.number] = stream
            self._epoll.unregister(stream.pipe)
            del self._handlers[stream.pipe]

    def _on_control(self) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, _PACKET_MAX_BYTES, 1)
        except BlockingIOError:
            return  # the wake-up was for room for answers
        except OSError:
            message, fds = b"", []
        if not message:  # an agent that is merely closing still listens
            self._has_agent = False
            del self._handlers[self._control.fileno()]
            self._epoll.unregister(self._control)
            return
        request = json.loads(message)
        if "tail" in request:
            self._answer_tail(request["tail"])
        elif fds:
            self._add(request, fds[0])
        else:
            self._post({"full": True})
            self._post({"closed": request["add"], "tail": ""})

    def _add(self, request: dict[str, Any], pipe: int) -> None:
        number = request["add"]
        order = _decode_order(request)
        os.set_blocking(pipe, False)
        stream = RelayedStream(number, pipe, order, self._consoles[order.stream], self._log_ended)
        self._streams[number] = stream
        self._handlers[pipe] = lambda: self._on_pipe(stream)
        self._epoll.register(pipe, select.EPOLLIN)

    def _answer_tail(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is not None:  # else its end has been reported, tail included
            if stream.number not in self._ended:
                self._on_pipe(stream)  # what has been written before the question counts
            self._post({"tail": number, "text": stream.tail.decode("latin-1")})

    def _log_ended(self, path: str, reason: str) -> None:
        self._post({"ended": path, "reason": reason})

    def _post(self, message: dict[str, Any]) -> None:
        self._outbox.append(json.dumps(message).encode())

    def _send(self) -> None:
        """Send what the agent has room for; the rest goes when it has read."""
        interest = select.EPOLLIN
        while self._outbox:
            try:
                self._control.send(self._outbox[0])
            except BlockingIOError:
                interest |= select.EPOLLOUT
                break
            except OSError:
                self._outbox.clear()  # the agent is gone; reading will say so
                break
            self._outbox.popleft()
        if self._has_agent and interest != self._interest:
            self._epoll.modify(self._control, interest)
            self._interest = interest
