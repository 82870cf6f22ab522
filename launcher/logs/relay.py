"""The relay: a process that copies workers' output from pipes to log files and the console.

It has one thread, imports little and knows only its streams. It outlives the agent until all output
of workers is written.

Agent and relay communicate over a ``SOCK_SEQPACKET`` socket pair, with one JSON object per packet
and bytes as Latin-1 text. To the relay: ``{"add": n, …}`` with the pipe's read end attached. From
the relay: ``{"closed": n}`` when a stream has ended and is completely written and shown,
``{"ended": path, "reason": …}`` for a log file, and last, if nothing read the console,
``{"unshown": bytes}``.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections import deque
from typing import Any, Final

from ..processes.ipc import close_all_but
from .console import open_consoles
from .log_file import Route, Stream, StreamPlan
from .relay_stream import RelayedStream

IDLE_EXIT_S: Final = 5.0
"""How long the relay runs without its agent if no data arrives and nothing can be shown."""

PACKET_MAX_BYTES: Final = 256 * 1024

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


def main(arguments: list[str]) -> int:
    """Run the relay with descriptors 1 and 2 as the console; the argument is the control socket."""
    control = socket.socket(fileno=int(arguments[0]))
    _detach(control.fileno())
    Relay(control).run()
    return 0


def encode_order(number: int, stream: Stream, prefix: bytes, plan: StreamPlan) -> bytes:
    """Return the packet that asks the relay to read the attached pipe as stream ``number``."""
    message = {
        "add": number,
        "stream": stream.value,
        "prefix": prefix.decode("latin-1"),
        "path": plan.path,
        "filters": [needle.decode("latin-1") for needle in plan.filters],
        "filtered_path": plan.filtered_path,
    }
    return json.dumps(message).encode()


def _detach(control: int) -> None:
    """Leave the agent's session, signals and files; keep the console and ``control``."""
    os.setsid()
    for signum in _IGNORED_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the agent has blocked all until here
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("ft-run-relay")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    close_all_but(control)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Relay:
    """The relay's loop: one chunk per ready stream and turn."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        control.setblocking(False)
        self._streams: dict[int, RelayedStream] = {}
        """Streams by number; the last one served is last."""
        self._outbox: deque[bytes] = deque()
        self._has_agent = True
        self._consoles = open_consoles()

    def run(self) -> None:
        """Run until the agent is gone and everything is written, or nothing can be written."""
        while self._has_agent or self._streams:
            ready = self._wait()
            if not ready and not self._may_catch_up():
                self._give_up()
                return
            for console in {*self._consoles.values()}:
                if console.fd in ready:
                    console.flush()
            for stream in self._streams.values():
                if stream.pipe in ready:
                    stream.pump()
            if self._control.fileno() in ready:
                self._receive()
            self._show_and_close()
            self._send()

    def _wait(self) -> set[int]:
        poll = select.poll()
        if self._has_agent:
            wanted = select.POLLIN | select.POLLOUT if self._outbox else select.POLLIN
            poll.register(self._control, wanted)
        for console in {*self._consoles.values()}:
            if console.fd is not None:
                poll.register(console.fd, select.POLLOUT)
        for stream in self._streams.values():
            if not stream.has_ended:
                poll.register(stream.pipe, select.POLLIN)
        timeout_s = 0.0 if self._may_catch_up() else None if self._has_agent else IDLE_EXIT_S
        return {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}

    def _may_catch_up(self) -> bool:
        return any(stream.can_catch_up for stream in self._streams.values())

    def _give_up(self) -> None:
        """Exit without the agent: received data is in the files; incomplete lines are shown.

        A process that outlived its job keeps a pipe open, or the console is stalled.
        """
        unshown = sum(stream.unshown for stream in self._streams.values())
        unshown += sum(console.unshown for console in {*self._consoles.values()})
        for stream in self._streams.values():
            if not stream.has_ended:
                stream.end()
        if unshown:
            self._post({"unshown": unshown})
            self._send()

    def _show_and_close(self) -> None:
        """Give each stream that is behind one turn at the console; close streams that are done."""
        for number, stream in list(self._streams.items()):
            if stream.can_catch_up:
                stream.catch_up()
                self._streams[number] = self._streams.pop(number)
            if stream.is_written():
                stream.close()
                del self._streams[number]
                self._post({"closed": number})

    def _receive(self) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, PACKET_MAX_BYTES, 1)
        except BlockingIOError:
            return  # the wake-up was for space for answers
        except OSError:
            message, fds = b"", []
        if not message:
            self._has_agent = False  # an agent that is closing still reads
            return
        if not fds:
            sys.exit("ft-run-relay: no file descriptor is left: raise the limit (ulimit -n)")
        self._add(json.loads(message), fds[0])

    def _add(self, request: dict[str, Any], pipe: int) -> None:
        os.set_blocking(pipe, False)
        filters = tuple(needle.encode("latin-1") for needle in request["filters"])
        plan = StreamPlan(Route.RELAY, request["path"], filters, request["filtered_path"])
        prefix = request["prefix"].encode("latin-1")
        console = self._consoles[Stream(request["stream"])]
        stream = RelayedStream(pipe, prefix, plan, console, self._log_ended)
        self._streams[request["add"]] = stream

    def _log_ended(self, path: str, reason: str) -> None:
        self._post({"ended": path, "reason": reason})

    def _post(self, message: dict[str, Any]) -> None:
        self._outbox.append(json.dumps(message).encode())

    def _send(self) -> None:
        """Send as much as the agent has space for; the rest follows when it has read."""
        while self._outbox:
            try:
                self._control.send(self._outbox[0])
            except BlockingIOError:
                return
            except OSError:
                self._outbox.clear()  # the agent is gone, which reading will show
                return
            self._outbox.popleft()
