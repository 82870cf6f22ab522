"""The agent's side of the spawner: forks it, requests workers from it, and reads their exits."""

import asyncio
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ...errors import NoProcessError
from ...events.preload import PreloadSource, PreloadState
from ..machine.shortage import no_process
from ..processes.ipc import Incoming, send
from ..processes.tree import (
    children,
    descendants,
    exits_within,
    family,
    is_zombie,
    kill_all,
)
from ..processes.typed_messages import as_json, reader
from ..processes.worker_exec import Worker
from ..processes.worker_watch import WorkerWatch
from . import messages
from .exits import ExitWatch, Key
from .guard import MOST_S, guard_main

_SEND_S = 5.0
"""Time limit for the spawner to read messages when the buffer of the socket is full."""
_THAW_AGAIN_S = 1.0
"""The interval at which the spawner is woken until it has started the workers."""
_STUCK_S = 0.5
"""Time between two checks of the guard, which exits within milliseconds."""


class WorkerCommand(Struct, frozen=True):
    """The command and the settings of one worker process."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables that are set on top of the agent's own environment."""
    stdin: int | None = None
    """File descriptors of its standard streams; None for the agent's."""
    stdout: int | None = None
    stderr: int | None = None
    cpus: frozenset[int] | None = None
    """The CPUs it may run on; None for all of the agent's."""
    service: bool = False
    """Whether it is a service, not a worker: it gets no signals for workers and outlives them."""
    watch: WorkerWatch | None = None
    """The file by which it is watched; None if it is not watched."""
    captures_errors: bool = False
    """Whether it is a Python process that writes an uncaught exception to its error file."""


class SpawnerClient:
    """The spawner as the agent sees it. The constructor forks it, or raises ``NoProcessError``.

    Create it before anything starts a thread or loads gRPC; ``listen`` when the loop runs.
    """

    def __init__(self) -> None:
        self.siblings = frozenset(children(os.getpid()))
        """The child processes of the program that calls ``main``."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise NoProcessError(f"{no_process(error)}.") from error
        self._default_signals = [
            int(number)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        self._blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        try:
            self.pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            raise NoProcessError(f"{no_process(error)}.") from error
        if self.pid == 0:
            ours.close()
            guard_main(theirs)
        theirs.close()
        self._channel = ours
        self._incoming = Incoming[messages.Event](ours, reader(messages.Event))
        self._spawner_pid = 0
        """0 if not yet reported, or the spawner has exited."""
        self._fork_server_pid = 0
        self._clearings = 0
        """The number of requests for ``Empty``; answers to earlier requests are ignored."""
        self.preloading = False
        """Whether workers wait for modules that are being imported."""
        self._exits = ExitWatch(self._thaw, self._report_exit)
        self._on_event: Callable[[messages.SpawnerEvent], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thawing: asyncio.TimerHandle | None = None
        """The next wake-up of the spawner while it starts workers."""

    def listen(self, on_event: Callable[[messages.SpawnerEvent], None]) -> None:
        """Call ``on_event`` for each event, on the running event loop."""
        self._on_event = on_event
        self._channel.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._channel.fileno(), self._readable)

    def preload(
        self,
        modules: Sequence[str],
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        differing: Sequence[str] = (),
        secluded: bool = False,
        source: PreloadSource = PreloadSource.OPTION,
    ) -> None:
        """Import modules once, and from then on fork every eligible worker from that process.

        Eligible commands: ``<the same Python> -u`` with a script, ``-m module`` or ``-c code``.
        ``ForkServerEvent`` follows, for as long as the spawner lives. Call this only once.

        Args:
            argv: the command line of a worker, which the modules find in ``sys.argv``.
            env: the variables on top of the agent's own environment; a worker may have more, unless
                the modules read them during import.
            differing: variables that have a different value in each worker; they are unset for the
                modules, even if the agent has them.
            secluded: the program of the workers first removes its own directory from ``sys.path``,
                so modules are not searched there; the standard streams are ``/dev/null`` during
                import.
            source: with ``WORKERS``, workers start normally until the import ends; otherwise they
                wait for it. Only the import of ``OPTION`` has no time limit.
        """
        self.preloading = source is not PreloadSource.WORKERS
        lists = list(modules), list(argv), dict(env), list(differing)
        signals = self._default_signals, self._blocked
        self._send(messages.Preload(*lists, secluded, source, *signals))

    def spawn(self, round_number: int, workers: Sequence[WorkerCommand]) -> None:
        """Start the workers of a round; ``Spawned`` follows. The positions are the local ranks."""
        self._thaw_again()
        requests: list[Worker] = []
        fds: list[int] = []
        for index, worker in enumerate(workers):
            given = {0: worker.stdin, 1: worker.stdout, 2: worker.stderr}
            mine = {target: fd for target, fd in given.items() if fd is not None}
            fds += (*mine.values(), *(worker.watch.fds if worker.watch is not None else ()))
            requests.append(
                Worker(
                    index,
                    list(worker.argv),
                    dict(worker.env),
                    list(mine),
                    self._default_signals,
                    self._blocked,
                    is_watched=worker.watch is not None,
                    captures_errors=worker.captures_errors,
                    service=worker.service,
                    cpus=sorted(worker.cpus) if worker.cpus else None,
                )
            )
        self._send(messages.Spawn(round_number, requests), fds)

    def signal(self, number: int) -> None:
        """Send a signal to the processes of workers that handle it, but not to services."""
        self._send(messages.Command("signal", int(number)))

    def stop(self, number: int) -> None:
        """Send workers the signal to end; workers that wait for the fork server end immediately.

        SIGTERM is not sent to the children of a process that handles it.
        """
        self._thaw()
        self._send(messages.Command("stop", int(number)))

    def terminate_all(self) -> None:
        """Send SIGTERM to all descendants of workers; ``Empty`` follows when they have exited."""
        self._thaw()
        self._send(messages.Command("terminate", self._next_clearing()))

    def kill(self) -> None:
        """Send SIGKILL to all descendants of workers; ``Empty`` follows when they have exited."""
        self._thaw()
        self._send(messages.Command("kill", self._next_clearing()))
        kill_all(self.left())  # even if the spawner does not respond

    def fence(self, at: float) -> None:
        """Set when workers are killed and no longer started; a later call extends the time.

        ``at`` is in seconds of CLOCK_BOOTTIME.
        """
        self._thaw()
        self._send(messages.Fence(at))

    def give_up(self) -> None:
        """Abandon a spawner that does not answer; ``SpawnerGone`` follows."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def set_last_words(self, text: str) -> None:
        """Set the text that the spawner writes to the terminal if the agent is killed."""
        self._send(messages.LastWords(text))

    def close(self) -> None:
        """End the spawner, which kills the remaining processes. Returns when it has been reaped."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._channel.fileno())
        self._stop_thawing()
        with suppress(OSError):  # later forks may hold the socket open too
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        if self.pid not in children(os.getpid()):
            return  # it was killed and reaped: its PID may be that of another process
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGCONT)  # the guard ensures that the spawner ends
            self._reap_guard()

    def _reap_guard(self) -> None:
        """Wait for the exit of the guard; kill it if a debugger or a frozen cgroup stops it."""
        end = time.monotonic() + MOST_S
        while not exits_within(self.pid, _STUCK_S) and time.monotonic() < end:
            if all(map(is_zombie, descendants(self.pid))):
                break  # there is nothing left to guard
        if not is_zombie(self.pid):
            kill_all([self.pid, *descendants(self.pid)])
            exits_within(self.pid, _STUCK_S)  # a frozen one dies when it is thawed
        os.waitpid(self.pid, os.WNOHANG)  # a debugger that still traces it reaps it first

    def left(self) -> list[int]:
        """Return the living processes that are workers or descendants of workers."""
        found = descendants(self._spawner_pid) if self._spawner_pid else []
        server = self._fork_server_pid
        spared = family(server, found) if server else set()
        return [pid for pid in found if pid not in spared and not is_zombie(pid)]

    def _thaw(self) -> None:
        """Wake a spawner that was stopped (SIGSTOP), because it would not handle requests."""
        if self._spawner_pid:
            with suppress(ProcessLookupError):
                os.kill(self._spawner_pid, signal.SIGCONT)

    def _thaw_again(self) -> None:
        """Wake the spawner until it has started the workers, which may wait for an import."""
        self._thaw()
        if self._loop is not None:
            self._thawing = self._loop.call_later(_THAW_AGAIN_S, self._thaw_again)

    def _stop_thawing(self) -> None:
        if self._thawing is not None:
            self._thawing.cancel()

    def _next_clearing(self) -> int:
        self._clearings += 1
        return self._clearings

    def _send(self, request: messages.Request, fds: Sequence[int] = ()) -> None:
        # The spawner reads promptly, so a blocking write is short. It cannot deadlock, because the
        # messages of the spawner are small and fit the socket's buffer.
        self._channel.settimeout(_SEND_S)
        try:
            send(self._channel, as_json(request), fds)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the reader reports its end
        except TimeoutError:
            self.give_up()  # a debugger or a frozen cgroup stops it
        finally:
            self._channel.setblocking(False)

    def _readable(self) -> None:
        assert self._on_event is not None
        try:
            events = self._incoming.receive()
        except BlockingIOError:
            return
        if events is None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._exits.close()
            self._stop_thawing()
            self._spawner_pid = 0
            self._on_event(messages.SpawnerGone())
            return
        for event in events:
            match event:
                case messages.Hello(pid):
                    self._spawner_pid = pid
                    continue
                case messages.Empty(number) if number != self._clearings:
                    continue
                case messages.Empty():
                    self._stop_thawing()
                case messages.Spawned(number, pids):
                    self._stop_thawing()
                    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                    for index, pid in enumerate(pids):
                        self._exits.started((number, index), pid, limit)
                case messages.Exited(number, index) if not self._exits.reported((number, index)):
                    continue  # it was reported while the spawner was stopped
                case messages.ForkServerEvent(state, pid, _, in_background):
                    self._fork_server_pid = pid
                    loads = state in (PreloadState.LOADING, PreloadState.STALE)
                    self.preloading = loads and not in_background
            self._on_event(event)

    def _report_exit(self, key: Key, exit_code: int) -> None:
        if self._on_event is not None:
            self._on_event(messages.Exited(*key, exit_code))
