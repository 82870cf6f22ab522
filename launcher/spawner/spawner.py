"""The spawner: a small single-threaded process that starts the workers and reports their exits.

gRPC does not support fork, so the agent forks this one process once, before it loads gRPC. The
spawner puts each worker in its own session and is the subreaper of all descendants. When the agent
exits, even by SIGKILL, the spawner reads end-of-file and kills every descendant, so that no orphans
remain. If the spawner itself is killed, the workers get SIGKILL through PR_SET_PDEATHSIG. Its
parent, the guard (``guard``), adopts and ends the processes that the workers started.

Agent and spawner send each other ``messages`` over a socket pair (``client``).

``Preload`` starts a fork server (``forkserver_host``), from which later workers are forked.

``Fence`` sets the time until which workers may live (seconds of CLOCK_BOOTTIME) if the agent does
not extend it: the agent may be stopped, or get no CPU time. After that time the spawner kills the
workers and starts none.
"""

import errno
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from ..processes.ipc import Incoming, close_all, send
from ..processes.prctl import become_subreaper
from ..processes.tree import (
    descendants,
    end_descendants,
    kill_all,
    signal_handlers,
    signal_parents,
    signal_session,
)
from ..processes.typed_messages import as_json, reader
from ..processes.worker_exec import NOT_EXECUTED, start_workers
from . import messages
from .forkserver_host import ForkServerHost

_KILL_AGAIN_MS = 20
"""The interval at which remaining processes are counted while killed ones are still ending."""

_THAW_AGAIN_MS = 1000
"""The interval at which the fork server is woken while workers wait for it: it may be stopped."""

ORPHANS_S = 10.0
"""A process that SIGKILL has not ended after this time is in uninterruptible sleep and is left."""


def leave_terminal() -> None:
    """Detach from the terminal: the agent handles Ctrl-C and hang-ups and ends its helpers."""
    with suppress(PermissionError):  # already in its own session
        os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


class Spawner:
    """The loop of the spawner process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._incoming = Incoming[messages.Request](channel, reader(messages.Request))
        self._workers: dict[int, tuple[int, int]] = {}
        """Process ID → (round, index) of each worker that has not been reaped."""
        self._services: set[int] = set()
        """Workers to which only ``terminate`` and ``kill`` apply."""
        self._parents: set[int] = set()
        """Workers whose children have not received SIGTERM."""
        self._fork_server = ForkServerHost(self.send, self.released)
        self._killing = False
        self._watching = False
        """Whether the agent waits for the report that no process is left."""
        self._clearing = 0
        """The number of the latest request for that report."""
        self._last_words = b""
        self._fence_at = math.inf
        self._is_fenced = False
        self._reaped_at = -math.inf
        """The time when a dead worker was last detected."""
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve the agent until it has exited and every descendant is dead."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # a parent may block it
        self.send(messages.Hello(os.getpid()))
        while True:
            ready = self._wait()
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            # Before dead processes are reaped: a new fork server may reuse the number of an old
            # socket.
            channel = self._fork_server.channel
            if channel is not None and channel.fileno() in ready:
                self._fork_server.receive()
            self._fork_server.give_up_late()
            self._reap()
            if self._channel.fileno() in ready and not self._receive():
                break
            self._fence()
            if self._watching:
                self._clear()
        end_descendants(ORPHANS_S)  # the agent has exited
        if self._last_words:
            with suppress(OSError):
                os.write(2, self._last_words)

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        timeout_ms = _KILL_AGAIN_MS if self._killing else None
        if self._fork_server.channel is not None:
            poll.register(self._fork_server.channel, select.POLLIN)
        if self._fork_server.is_awaited:
            self._fork_server.thaw()
            timeout_ms = timeout_ms or _THAW_AGAIN_MS
        if (left_s := self._fork_server.loading_left_s()) < math.inf:
            left_ms = max(1, 1 + math.ceil(left_s * 1000))
            timeout_ms = min(timeout_ms or left_ms, left_ms)
        if self._fence_at < math.inf and not self._is_fenced:
            left_ms = max(1, 1 + math.ceil((self._fence_at - _now()) * 1000))
            timeout_ms = min(timeout_ms or left_ms, left_ms)
        return {fd for fd, _ in poll.poll(timeout_ms)}

    # --- the agent ---------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Read the agent's messages; return False at end-of-file."""
        requests = self._incoming.receive()
        for request in requests or ():
            if isinstance(request, messages.Fence):
                # The latest message also applies to the earlier ones. The agent repeats a deadline
                # that has passed: the workers were killed then.
                self._is_fenced &= request.at == self._fence_at
                self._fence_at = request.at
        self._fence()
        for request in requests or ():
            self._do(request)
        return requests is not None

    def _do(self, request: messages.Request) -> None:
        match request:
            case messages.Preload():
                self._fork_server.preload(request)
            case messages.Spawn():
                self._spawn(request)
            case messages.Command("signal", number):
                for pid in self._workers.keys() - self._services:
                    signal_handlers(pid, number, os.getpid())
            case messages.Command("stop", number):
                self._cancel(number)
                self._stop(number)
            case messages.Command("terminate", number):
                self._watching = True
                self._clearing = number
                for pid in self._left():
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGTERM)
            case messages.Command("kill", number):
                self._cancel(signal.SIGKILL)
                self._killing = self._watching = True
                self._clearing = number
            case messages.LastWords(text):
                self._last_words = text.encode()

    # --- the fence ---------------------------------------------------------------------------

    def _fence(self) -> None:
        """Kill the workers if the agent has not extended their deadline."""
        if self._is_fenced or (late_s := _now() - self._fence_at) < 0:
            return
        self._is_fenced = True
        is_alive = self._fork_server.is_awaited or bool(self._left())
        if is_alive or self._reaped_at >= self._fence_at:
            late_s = late_s if is_alive else self._reaped_at - self._fence_at
            self.send(messages.Fenced(late_s))
            self._cancel(signal.SIGKILL)
            self._killing = self._watching = True
            self._clear()

    def send(self, event: messages.Event) -> None:
        """Send an event to the agent."""
        with suppress(ConnectionError):
            send(self._channel, as_json(event))

    # --- workers -----------------------------------------------------------------------------

    def _spawn(self, request: messages.Spawn) -> None:
        workers = request.workers
        try:
            fds = self._incoming.take_fds(sum(worker.fds for worker in workers))
        except OSError as error:
            errors = {worker.position: error.errno or errno.EIO for worker in workers}
            self._spawned(request, [0] * len(workers), errors)
            return
        if _now() >= self._fence_at:
            close_all(fds)
            self.send(messages.Fenced(0.0))
        elif self._fork_server.takes(request):
            self._fork_server.spawn(request, fds)
        else:
            self.released(request, fds, [])

    def released(self, request: messages.Spawn, fds: list[int], pids: list[int]) -> None:
        """Supervise the first workers, forked as ``pids``; start the others, and close ``fds``."""
        workers = request.workers
        used = sum(worker.fds for worker in workers[: len(pids)])
        started = start_workers(workers[len(pids) :], fds[used:])
        close_all(fds)
        self._spawned(request, [*pids, *started.pids], dict(started.errors))

    def _spawned(
        self, request: messages.Spawn, pids: Sequence[int], errors: Mapping[int, int]
    ) -> None:
        self.send(messages.Spawned(request.round, tuple(pids), errors))
        for pid, worker in zip(pids, request.workers, strict=True):
            if pid:
                self._workers[pid] = (request.round, worker.position)
                if worker.service:
                    self._services.add(pid)
            else:
                self.send(messages.Exited(request.round, worker.position, NOT_EXECUTED))

    def _stop(self, number: int) -> None:
        for pid in self._workers.keys() - self._services:
            if number != signal.SIGTERM:
                signal_session(pid, number, os.getpid())
            elif signal_parents(pid, number, os.getpid()):
                self._parents.add(pid)

    def _cancel(self, number: int) -> None:
        """Report workers that have not started as ended by the signal."""
        if (request := self._fork_server.cancel()) is None:
            return
        for worker in request.workers:
            if not worker.service:
                self.send(messages.Exited(request.round, worker.position, -number))

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
                self._reaped_at = _now()
                self.send(messages.Exited(*self._workers.pop(pid), code, pid in self._parents))
                self._parents.discard(pid)
            elif pid == self._fork_server.pid:
                self._fork_server.reaped(code)

    def _left(self) -> list[int]:
        found = descendants(os.getpid())
        # Queried afterwards, so that new processes of the fork server count as its own.
        spared = self._fork_server.spared(found)
        return [pid for pid in found if pid not in spared]

    def _clear(self) -> None:
        if self._killing:
            kill_all(self._left())
            self._reap()
        if not self._left():
            self._killing = self._watching = False
            self.send(messages.Empty(self._clearing))


def _now() -> float:
    """Return seconds of a clock that continues while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def spawner_main(channel: socket.socket, guard: int) -> NoReturn:
    """Run the spawner until the agent has exited; never returns."""
    status = 1
    try:
        leave_terminal()
        become_subreaper()
        Spawner(channel).run()
        if os.getppid() == guard:
            os.kill(guard, signal.SIGCONT)  # the guard ends too, unless it is stopped
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)
