"""The spawner: a small single-threaded process that starts the workers and reports their exits.

gRPC does not support fork, so the agent forks once, this process, before it loads gRPC. The
spawner puts each worker in a session of its own, is the subreaper of everything they start, and
when the agent disappears, even by SIGKILL, it sees end-of-file and kills every descendant: no
orphans. Should the spawner itself be killed, the workers get SIGKILL by PR_SET_PDEATHSIG and
what they started is adopted, and ended, by the agent.

Agent and spawner speak ``frames`` over a socket pair (``spawner_client``).

    agent → spawner                              spawner → agent
    {"do": "spawn", "round", "workers": […]}     {"event": "spawned", "round", "pids", "errors"}
    {"do": "signal", "signal"}                   {"event": "exited", "round", "index", "status"}
    {"do": "stop", "signal"}
    {"do": "terminate"}                          {"event": "empty"}
    {"do": "kill"}                               {"event": "empty"}
    {"do": "last-words", "text"}
    {"do": "preload", …}                         {"event": "image", "pid", "state", …}

``preload`` gives it an image (``image_host``), from which later workers are forked.
"""

import os
import select
import signal
import socket
import sys
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

from .frames import Incoming, send
from .image_host import ImageHost
from .process_tree import descendants, is_zombie, kill_all, signal_session
from .worker_process import fork_worker

_KILL_AGAIN_MS = 20
"""While killed processes are still going away, how often their number is looked at."""

_ORPHANS_S = 10.0


def become_subreaper() -> None:
    """Adopt every descendant whose parent dies, instead of leaving it to PID 1."""
    from . import prctl  # ctypes is loaded when it is needed

    prctl.become_subreaper()


class Spawner:
    """The loop of the spawner process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._incoming = Incoming(channel)
        self._workers: dict[int, tuple[int, int]] = {}
        """Process id → (round, index) of each worker that has not been reaped."""
        self._services: set[int] = set()
        """Those of them that only ``terminate`` and ``kill`` are meant for."""
        self._image: ImageHost | None = None
        self._killing = False
        self._watching = False
        """The agent waits to hear that nothing is left."""
        self._last_words = b""
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve the agent until it is gone and every descendant is dead."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        while True:
            ready = self._wait()
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            # Before the dead are reaped: a fresh image may get the number of an old one's socket.
            if self._image is not None and self._image.says_something(ready):
                self._image.receive()
            self._reap()
            if self._channel.fileno() in ready and not self._receive():
                break
            if self._watching:
                self._clear()
        self._image = None
        self._end_orphans()

    def _wait(self) -> set[int]:
        """Return the file descriptors on which something has come."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if self._image is not None and self._image.channel is not None:
            poll.register(self._image.channel, select.POLLIN)
        return {fd for fd, _ in poll.poll(_KILL_AGAIN_MS if self._killing else None)}

    # --- the agent ---------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Take what the agent sent; return False at end-of-file."""
        requests = self._incoming.receive()
        for request in requests or ():
            self._do(request)
        return requests is not None

    def _do(self, request: dict[str, Any]) -> None:
        match request["do"]:
            case "preload":
                self._image = ImageHost(request, self)
            case "spawn":
                self._spawn(request)
            case "signal":
                self._signal(request["signal"])
            case "stop":
                self._cancel(request["signal"])
                self._signal(request["signal"])
            case "terminate":
                self._watching = True
                for pid in self._left():
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGTERM)
            case "kill":
                self._cancel(signal.SIGKILL)
                self._killing = self._watching = True
            case "last-words":
                self._last_words = request["text"].encode()

    def send(self, event: dict[str, Any]) -> None:
        """Tell the agent."""
        with suppress(ConnectionError):
            send(self._channel, event)

    # --- workers -----------------------------------------------------------------------------

    def _spawn(self, request: dict[str, Any]) -> None:
        fds = self._incoming.take_fds(sum(worker["fds"] for worker in request["workers"]))
        if self._image is not None and self._image.takes(request):
            self._image.spawn(request, fds)
        else:
            self.spawn_cold(request, fds)

    def spawn_cold(self, request: dict[str, Any], fds: list[int]) -> None:
        """Start workers by executing their programs."""
        pids: list[int] = []
        errors: list[tuple[int, int]] = []
        pipes: list[int] = []
        streams = iter(fds)
        for worker in request["workers"]:
            pid, errors_from = fork_worker(worker, list(islice(streams, worker["fds"])))
            pids.append(pid)
            pipes.append(errors_from)
        for index, pipe in enumerate(pipes):
            # End-of-file means that the program was started; four bytes are the errno why not.
            with os.fdopen(pipe, "rb") as file:
                data = file.read(4)
            if data:
                errors.append((index, int.from_bytes(data, "little")))
        self.spawned(request, pids, errors, fds)

    def spawned(
        self,
        request: dict[str, Any],
        pids: list[int],
        errors: list[tuple[int, int]],
        fds: list[int],
    ) -> None:
        """Look after workers that have been started, and tell the agent of them."""
        number = request["round"]
        for pid, worker in zip(pids, request["workers"], strict=True):
            self._workers[pid] = (number, worker["index"])
            if worker["service"]:
                self._services.add(pid)
        for fd in fds:
            os.close(fd)
        self.send({"event": "spawned", "round": number, "pids": pids, "errors": errors})

    def _signal(self, number: int) -> None:
        for pid in self._workers.keys() - self._services:
            signal_session(pid, number, os.getpid())

    def _cancel(self, number: int) -> None:
        """Workers that have not begun end as if the signal had met them then."""
        request = self._image.cancel() if self._image is not None else None
        if request is not None:
            for worker in request["workers"]:
                self._send_exit(request["round"], worker["index"], -number)

    def _send_exit(self, number: int, index: int, status: int) -> None:
        self.send({"event": "exited", "round": number, "index": index, "status": status})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid in self._workers:
                self._services.discard(pid)
                self._send_exit(*self._workers.pop(pid), code)
            elif self._image is not None and pid == self._image.pid:
                self._image.reaped(code)

    def _left(self) -> list[int]:
        """Return what descends from workers, or is one."""
        spared = self._image.spared if self._image is not None else None
        return [pid for pid in descendants(os.getpid()) if pid != spared]

    def _clear(self) -> None:
        if self._killing:
            kill_all(os.getpid(), spare=self._image.spared if self._image is not None else None)
            self._reap()
        if not self._left():
            self._killing = self._watching = False
            self.send({"event": "empty"})

    def _end_orphans(self) -> None:
        """The agent is gone: nothing of its workers may outlive it."""
        import time

        deadline = time.monotonic() + _ORPHANS_S
        while time.monotonic() < deadline:
            kill_all(os.getpid())
            self._reap()
            if all(is_zombie(pid) for pid in descendants(os.getpid())):
                break
            select.select([self._wake], [], [], _KILL_AGAIN_MS / 1000)
        if self._last_words:
            with suppress(OSError):
                os.write(2, self._last_words)


def spawner_main(channel: socket.socket) -> NoReturn:
    """Be the spawner until the agent is gone; never returns."""
    status = 1
    try:
        # Ctrl-C and hang-ups are for the agent to handle; the spawner ends with the agent.
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        become_subreaper()
        Spawner(channel).run()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)
