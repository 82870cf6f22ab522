"""The spawner's side of the fork server: starts it, forks workers from it, and replaces it.

    LOADING → READY ⇄ FORKING
       └───────┴─────────┴──→ GONE      and LOADING again, or for good

Workers wait for a fork server that is loading, unless it loads in the background (``--preload
auto``): they are then started normally. A fork server is replaced by a new one if it was killed or
if its modules have changed on disk. The spawner gives up a fork server that cannot be started, or
that would fork workers that differ from ordinary ones. Workers then fall back to the normal start.
Services are never forked.
"""

import enum
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...events.preload import PreloadSource, PreloadState
from ..machine.shortage import no_process
from ..processes.ipc import Incoming, close_all, send
from ..processes.tree import family
from ..processes.typed_messages import reader
from ..processes.worker_exec import Worker, fork_worker
from .messages import ForkServerEvent, ForkServerReply, Preload, Spawn

_LOADING_MAX_S = 120.0
"""Time limit for the import of modules that the user has not named."""

_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forkserver_main.py")


class ForkServerState(enum.Enum):
    """The state of the fork server."""

    LOADING = "loading"
    READY = "ready"
    FORKING = "forking"
    GONE = "gone"


class ForkServerHost:
    """The fork server, as the spawner sees it. Workers start normally until ``preload``."""

    def __init__(
        self,
        tell: Callable[[ForkServerEvent], None],
        released: Callable[[Spawn, list[int], list[int]], None],
    ) -> None:
        self._tell, self._released = tell, released
        self._order: Preload
        self._waiting: tuple[Spawn, list[int]] | None = None
        self._is_of_use = False
        self._go: int | None = None
        self.state = ForkServerState.GONE
        self.pid = 0
        self.channel: socket.socket | None = None

    def preload(self, order: Preload) -> None:
        """Start a fork server with an order of ``SpawnerClient.preload``."""
        self._order, self._is_of_use = order, True
        self._start()

    @property
    def _in_background(self) -> bool:
        """Whether workers do not wait for the modules."""
        return self._order.source is PreloadSource.WORKERS

    def spared(self, found: list[int]) -> set[int]:
        """Return the given processes that do not belong to workers.

        They are the fork server and processes that modules start during import (e.g. a compiler).
        While the fork server forks, each of its descendants may be a worker: the result is empty.
        """
        if self.state is ForkServerState.FORKING or not self.pid:
            return set()
        return family(self.pid, found)

    # --- requests of the spawner -------------------------------------------------------------

    def takes(self, request: Spawn) -> bool:
        """Return whether the workers can be forked: their command is ``<its python> -u …``."""
        is_ready = self.state in (ForkServerState.READY, ForkServerState.FORKING)
        if not self._is_of_use or (self._in_background and not is_ready):
            return False
        python = self._order.argv[0]
        return all(_is_program(worker.argv, python) for worker in _forked(request))

    def spawn(self, request: Spawn, fds: list[int]) -> None:
        """Fork workers as soon as the fork server is ready; the spawner takes them over."""
        assert self._waiting is None
        self._waiting = request, fds
        if self.state is ForkServerState.READY:
            self._fork()

    def cancel(self) -> Spawn | None:
        """Discard the workers that have not started; return their request."""
        if self._waiting is None:
            return None
        request, fds = self._waiting
        self._waiting = None
        close_all(fds)
        return request

    @property
    def is_awaited(self) -> bool:
        """Whether workers wait for the fork server."""
        return self._waiting is not None

    def thaw(self) -> None:
        """Wake the fork server if it was stopped (SIGSTOP)."""
        if self.pid:
            os.kill(self.pid, signal.SIGCONT)

    def loading_left_s(self) -> float:
        """Return the time until ``give_up_late`` gives up the import; infinite if it never does."""
        is_loading = self.state is ForkServerState.LOADING
        if not is_loading or self._order.source is PreloadSource.OPTION:
            return math.inf
        return self._started + _LOADING_MAX_S - time.monotonic()

    def give_up_late(self) -> None:
        """Give up an import that takes too long."""
        if self.loading_left_s() <= 0:
            self.kill()
            self._give_up(f"importing {self._modules} takes longer than {_LOADING_MAX_S:g} s")

    def receive(self) -> None:
        """Handle messages of the fork server, or end-of-file."""
        try:
            messages = self._incoming.receive()
        except ValueError as error:
            self.kill()
            self._give_up(f"importing {self._modules} writes to ft-run's socket ({error})")
            return
        if messages is None:
            self._hang_up()
            self.kill()
            return
        for message in messages:
            self._take(message)

    def reaped(self, status: int) -> None:
        """Handle the exit of the fork server; ``status`` is in the format of ``subprocess``."""
        self.pid = 0
        self._drain()
        state = self.state
        self._hang_up()
        self._forget()
        self.state = ForkServerState.GONE
        if not self._is_of_use:
            return
        wanted = self._waiting is not None
        if state is ForkServerState.LOADING or (state is ForkServerState.FORKING and wanted):
            end = f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
            self._give_up(f"the process that imports {self._modules} {end}")
        else:
            self._start()

    def kill(self) -> None:
        """Send SIGKILL to the fork server; it is reaped as a child."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    # --- the fork server ---------------------------------------------------------------------

    @property
    def _modules(self) -> str:
        return ", ".join(self._order.modules)

    def _start(self) -> None:
        self._started = time.monotonic()
        try:
            self.channel = self._start_process()
        except OSError as error:
            self._give_up(no_process(error))
            return
        self._incoming = Incoming[ForkServerReply](self.channel, reader(ForkServerReply))
        self.state = ForkServerState.LOADING
        self._report_state(PreloadState.LOADING)
        keys = ("modules", "argv", "secluded", "differing")
        self._send({"do": "preload", **{key: getattr(self._order, key) for key in keys}})

    def _start_process(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        order = self._order
        argv = [order.argv[0], "-u", _MAIN, str(theirs.fileno())]
        targets = [0, 1, 2] if order.secluded else []
        process = Worker(0, argv, order.env, targets, order.default_signals, order.blocked_signals)
        try:
            with open(os.devnull, "r+b", buffering=0) as nothing:
                streams = [nothing.fileno()] * len(targets)
                self.pid, errors_from = fork_worker(process, streams, keep=(theirs.fileno(),))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        os.close(errors_from)  # a command that cannot be executed exits, which is detected
        return ours

    def _drain(self) -> None:
        """Handle the messages that it sent before it exited."""
        while self.channel is not None:
            self.channel.setblocking(False)  # a process that it started may hold its end open
            try:
                self.receive()
            except BlockingIOError:
                return

    def _take(self, message: ForkServerReply) -> None:
        match message:
            case ForkServerReply(ready=int(mib)):
                self.state = ForkServerState.READY
                text = f"{time.monotonic() - self._started:.1f} s"
                if mib:
                    text += f" ({mib} MiB)"
                self._report_state(PreloadState.READY, text)
                if self._waiting is not None:
                    self._fork()
            case ForkServerReply(pids=list(pids)):
                self._release(pids)
            case ForkServerReply(stale=str(path)):
                self._forget()
                self.state = ForkServerState.GONE  # it exits, and a new one is started
                self._report_state(PreloadState.STALE, path)
                if self._in_background:
                    self._start_normally()
            case ForkServerReply(failed=str(reason)) | ForkServerReply(cold=str(reason)):
                self._give_up(reason)

    def _fork(self) -> None:
        assert self._waiting is not None
        request, fds = self._waiting
        try:
            go_from, self._go = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            self._give_up(no_process(error))
            return
        self.state = ForkServerState.FORKING
        workers = _forked(request)
        count = sum(worker.fds for worker in workers)
        self._send({"do": "fork", "workers": workers}, [go_from, *fds[:count]])
        os.close(go_from)

    def _release(self, pids: list[int]) -> None:
        """Release the workers that were forked, unless they are no longer wanted."""
        if self._waiting is not None:
            assert self._go is not None
            with suppress(BrokenPipeError):
                os.write(self._go, b"\0" * len(pids))
            request, fds = self._waiting
            self._waiting = None
            self._released(request, fds, pids)
        self._forget()
        self.state = ForkServerState.READY

    def _forget(self) -> None:
        """Close the pipe: workers that were forked and not released then exit."""
        if self._go is not None:
            os.close(self._go)
            self._go = None

    def _give_up(self, reason: str) -> None:
        self._is_of_use = False
        self._forget()
        self._hang_up()
        self.state = ForkServerState.GONE
        self._report_state(PreloadState.FAILED, reason)
        self._start_normally()

    def _start_normally(self) -> None:
        """Have waiting workers started without the fork server."""
        if self._waiting is not None:
            request, fds = self._waiting
            self._waiting = None
            self._released(request, fds, [])

    def _hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _report_state(self, state: PreloadState, text: str = "") -> None:
        self._tell(ForkServerEvent(state, self.pid, text, self._in_background))

    def _send(self, message: dict[str, object], fds: Sequence[int] = ()) -> None:
        assert self.channel is not None
        with suppress(ConnectionError):  # reading detects its end
            send(self.channel, message, fds)


def _is_program(argv: list[str], python: str) -> bool:
    if len(argv) < 3 or argv[:2] != [python, "-u"]:
        return False
    return len(argv) > 3 if argv[2] in ("-m", "-c") else not argv[2].startswith("-")


def _forked(request: Spawn) -> list[Worker]:
    return [worker for worker in request.workers if not worker.service]
