"""The spawner's side of the fork server: starts it, forks workers from it, and replaces it.

    LOADING → READY ⇄ FORKING
       └───────┴─────────┴──→ GONE      and LOADING again, or for good

Workers wait for a fork server that is loading, unless it loads in the background (``--preload
auto``): they are then started normally. A fork server is replaced by a new one if it was
killed or if its modules have changed on disk. The spawner gives up a fork server that cannot be
started, or that would fork workers that differ from ordinary ones. Workers then fall back to the
normal start.
"""

import enum
import os
import signal
import socket
import time
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from ...events.preload import PreloadSource
from ..machine.shortage import no_process
from ..processes.ipc import Incoming, send
from ..processes.tree import family
from ..processes.worker_exec import code_from, fork_worker

_LOADING_MAX_S = 120.0
"""The time after which the import of modules that the user has not named is given up."""

_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forkserver_main.py")

Request = dict[str, Any]


class ForkServerState(enum.Enum):
    """The state of the fork server."""

    LOADING = "loading"
    READY = "ready"
    FORKING = "forking"
    GONE = "gone"


class Owner(Protocol):
    """The spawner, which starts workers normally and takes over forked workers."""

    def spawn_cold(self, request: Request, fds: list[int]) -> None:
        """Start the workers of a request normally, without the fork server."""

    def released(self, request: Request, pids: list[int]) -> None:
        """Take over workers that were forked and released: they are children of this process."""

    def spawned(self, request: Request, pids: list[int], errors: list[tuple[int, int]]) -> None:
        """Handle that each of them has started its program or has failed to."""

    def send(self, event: dict[str, Any]) -> None:
        """Send a message to the agent."""


class _Beginning(NamedTuple):
    """Workers that were released, of which some have not yet started their program."""

    request: Request
    pids: list[int]
    errors: int
    """A pipe with the index and errno of each worker that could not start; at end-of-file, all
    others have started."""
    data: bytearray


class ForkServerHost:
    """The fork server, as the spawner sees it."""

    def __init__(self, order: Request, owner: Owner) -> None:
        """Start a fork server.

        Args:
            order: ``modules`` to preload; ``argv`` of a worker, the first word of which is the
                interpreter; ``env`` and the signals as for a worker; ``secluded``, ``source`` and
                ``count``, see ``SpawnerClient.preload``.
            owner: the spawner.
        """
        self._order = order
        self._owner = owner
        self._python: str = order["argv"][0]
        self._waiting: tuple[Request, list[int]] | None = None
        self._beginning: _Beginning | None = None
        self._given_up = False
        self._is_named = order["source"] == PreloadSource.OPTION.value
        self._in_background = order["source"] == PreloadSource.WORKERS.value
        """Whether workers do not wait for the modules."""
        self._importing = ""
        self._count: int = order["count"]
        """The number of workers in the last fork request."""
        self._has_foreseen = False
        self._go: int | None = None
        self._errors: int | None = None
        self.state = ForkServerState.GONE
        self.pid = 0
        self.channel: socket.socket | None = None
        self._start()

    def spared(self, found: list[int]) -> set[int]:
        """Return which of some processes do not belong to workers.

        While the fork server forks, each of its descendants may be a worker, and none is exempt.
        Otherwise the exempt processes are the fork server, what the modules start while they are
        imported (e.g. a compiler), and the processes that the fork server has forked ahead.
        """
        if self.state is ForkServerState.FORKING or not self.pid:
            return set()
        return family(self.pid, found)

    # --- requests of the spawner -------------------------------------------------------------

    def takes(self, request: Request) -> bool:
        """Return whether the workers can be forked: their command is ``<its python> -u …``."""
        if self._in_background and self.state not in (
            ForkServerState.READY,
            ForkServerState.FORKING,
        ):
            return False
        argvs = [worker["argv"] for worker in request["workers"]]
        return not self._given_up and all(_is_program(argv, self._python) for argv in argvs)

    def spawn(self, request: Request, fds: list[int]) -> None:
        """Fork workers as soon as the fork server is ready; the result goes to the owner."""
        assert self._waiting is None
        self._waiting = request, fds
        if self.state is ForkServerState.READY:
            self._fork()

    def foresee(self) -> None:
        """Prepare as many workers as before while those end, once for each start."""
        if self.state is ForkServerState.READY and self._count and not self._has_foreseen:
            self._has_foreseen = True
            self._send({"do": "foresee", "count": self._count})

    def cancel(self) -> Request | None:
        """Discard the workers that have not started; return their request."""
        if self._waiting is None:
            return None
        request, fds = self._waiting
        self._waiting = None
        _close(fds)
        return request

    @property
    def is_awaited(self) -> bool:
        """Whether workers wait for the fork server."""
        return self._waiting is not None

    def thaw(self) -> None:
        """Wake the fork server if it was stopped (SIGSTOP)."""
        if self.pid:
            os.kill(self.pid, signal.SIGCONT)

    def loading_left_s(self) -> float | None:
        """Return the time until ``give_up_late`` has something to do; None: it never has."""
        if self._is_named or self.state is not ForkServerState.LOADING:
            return None
        return max(0.0, self._started + _LOADING_MAX_S - time.monotonic())

    def give_up_late(self) -> None:
        """Give up an import that takes too long."""
        if self.loading_left_s() == 0.0:
            self.kill()
            self._give_up(f"importing {self._importing} takes longer than {_LOADING_MAX_S:g} s")

    def watched(self) -> list[int]:
        """Return the descriptors from which ``hear`` reads."""
        fds = [] if self.channel is None else [self.channel.fileno()]
        return fds if self._beginning is None else [*fds, self._beginning.errors]

    def hear(self, ready: set[int]) -> None:
        """Handle incoming data, given the descriptors that are readable."""
        if self._beginning is not None and self._beginning.errors in ready:
            self.hear_beginning()
        if self.channel is not None and self.channel.fileno() in ready:
            self.receive()

    def hear_beginning(self, *, are_gone: bool = False) -> None:
        """Read the reports of released workers; notify the owner when the last one has started.

        Args:
            are_gone: no worker is left that could report more.
        """
        beginning = self._beginning
        if beginning is None:
            return
        with suppress(BlockingIOError):
            while data := os.read(beginning.errors, 4096):
                beginning.data.extend(data)
            are_gone = True
        if not are_gone:
            return
        self._beginning = None
        os.close(beginning.errors)
        data = bytes(beginning.data)
        errors = [
            (
                int.from_bytes(data[start : start + 4], "little"),
                code_from(data[start + 4 : start + 8]),
            )
            for start in range(0, len(data), 8)
        ]
        self._owner.spawned(beginning.request, beginning.pids, errors)

    def receive(self) -> None:
        """Handle a message from the fork server."""
        messages = self._incoming.receive()
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
        if self._given_up:
            return
        wanted = self._waiting is not None
        if state is ForkServerState.LOADING or (state is ForkServerState.FORKING and wanted):
            end = f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
            self._give_up(f"the process that imports {', '.join(self._order['modules'])} {end}")
        else:
            self._start()

    def kill(self) -> None:
        """Send SIGKILL to the fork server; it is reaped as a child."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    # --- the fork server ---------------------------------------------------------------------

    def _start(self) -> None:
        self._started = time.monotonic()
        try:
            self.channel = self._start_process()
        except OSError as error:
            self._give_up(no_process(error))
            return
        self._incoming = Incoming(self.channel)
        self.state = ForkServerState.LOADING
        self._report_state("loading")
        keys = ("modules", "argv", "secluded", "differing")
        pauses = self._in_background and self._order["pauses"]
        how = {"is_named": self._is_named, "pauses": pauses}
        self._send({"do": "preload", **{key: self._order[key] for key in keys}, **how})

    def _start_process(self) -> socket.socket:
        """Start the process; return the socket to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        argv = [self._python, "-u", _MAIN, str(theirs.fileno())]
        process = {**self._order, "argv": argv, "cpus": None}
        try:
            self.pid, errors_from = self._start_fork_server(process, theirs.fileno())
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        os.close(errors_from)  # a command that cannot be executed exits, which is detected
        return ours

    def _start_fork_server(self, process: Request, keep: int) -> tuple[int, int]:
        if not self._order["secluded"]:
            return fork_worker({**process, "targets": []}, (), keep=(keep,))
        with open(os.devnull, "r+b", buffering=0) as nothing:
            streams = (nothing.fileno(),) * 3
            return fork_worker({**process, "targets": [0, 1, 2]}, streams, keep=(keep,))

    def _drain(self) -> None:
        """Handle the messages that it sent before it exited."""
        while self.channel is not None:
            self.channel.setblocking(False)  # a process that it started may hold its end open
            try:
                self.receive()
            except BlockingIOError:
                return

    def _take(self, message: dict[str, Any]) -> None:
        match message:
            case {"importing": str(name)}:
                self._importing = name
            case {"ready": _}:
                self.state = ForkServerState.READY
                text = f"{time.monotonic() - self._started:.1f} s"
                if mib := message["pss_mib"]:
                    text += f" ({mib} MiB)"
                if not self._is_named:
                    self._in_background = True
                self._report_state("ready", text)
                if self._waiting is not None:
                    self._fork()
            case {"pids": list(pids)}:
                self._release(pids)
            case {"stale": str(path)}:
                self._forget()
                self.state = ForkServerState.GONE  # it exits, and a new one is started
                self._report_state("stale", path)
                if self._in_background:
                    self._start_normally()
            case {"failed": str(reason)} | {"cold": str(reason)}:
                self._give_up(reason)

    def _fork(self) -> None:
        assert self._waiting is not None
        request, fds = self._waiting
        try:
            (go_from, self._go), (self._errors, errors_to) = _two_pipes()
        except OSError as error:
            self._give_up(no_process(error))
            return
        self.state = ForkServerState.FORKING
        self._send({"do": "fork", "workers": request["workers"]}, [go_from, errors_to, *fds])
        os.close(go_from)
        os.close(errors_to)

    def _release(self, pids: list[int]) -> None:
        """Release the workers that were forked, unless they are no longer wanted."""
        if self._waiting is not None:
            assert self._go is not None
            assert self._errors is not None
            with suppress(BrokenPipeError):
                os.write(self._go, b"\0" * len(pids))
            request, fds = self._waiting
            self._waiting = None
            self._count, self._has_foreseen = len(pids), False
            _close(fds)
            os.set_blocking(self._errors, False)
            self._beginning = _Beginning(request, pids, self._errors, bytearray())
            self._errors = None
            self._owner.released(request, pids)
        self._forget()
        self.state = ForkServerState.READY

    def _forget(self) -> None:
        """Close the pipes: workers that were forked and not released then exit."""
        _close([fd for fd in (self._go, self._errors) if fd is not None])
        self._go = self._errors = None

    def _give_up(self, reason: str) -> None:
        self._given_up = True
        self._forget()
        self._hang_up()
        self.state = ForkServerState.GONE
        self._report_state("failed", reason)
        self._start_normally()

    def _start_normally(self) -> None:
        """Have the workers that wait, if any, started without the fork server."""
        if self._waiting is not None:
            request, fds = self._waiting
            self._waiting = None
            self._owner.spawn_cold(request, fds)

    def _hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _report_state(self, state: str, text: str = "") -> None:
        about = {"state": state, "text": text, "in_background": self._in_background}
        self._owner.send({"event": "fork-server", "pid": self.pid, **about})

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        assert self.channel is not None
        with suppress(ConnectionError):  # reading detects its end
            send(self.channel, message, fds or ())


def _is_program(argv: list[str], python: str) -> bool:
    if len(argv) < 3 or argv[:2] != [python, "-u"]:
        return False
    return len(argv) > 3 if argv[2] in ("-m", "-c") else not argv[2].startswith("-")


def _two_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    first = os.pipe2(os.O_CLOEXEC)
    try:
        return first, os.pipe2(os.O_CLOEXEC)
    except OSError:
        _close([*first])
        raise


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
