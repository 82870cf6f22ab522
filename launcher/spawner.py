"""The spawner: a small single-threaded process that starts the workers and reports their exits.

gRPC does not support fork, so the agent forks once, this process, before it loads gRPC. The
spawner puts each worker in a session of its own, is the subreaper of everything they start, and
when the agent disappears, even by SIGKILL, it sees end-of-file and kills every descendant: no
orphans. Should the spawner itself be killed, the workers get SIGKILL by PR_SET_PDEATHSIG and
what they started is adopted, and ended, by the agent.

Agent and spawner speak length-prefixed JSON over a socket pair (``spawner_client``); file
descriptors travel beside it.

    agent → spawner                              spawner → agent
    {"do": "spawn", "round", "workers": […]}     {"event": "spawned", "round", "pids", "errors"}
    {"do": "signal", "signal"}                   {"event": "exited", "round", "index", "status"}
    {"do": "terminate"}                          {"event": "empty"}
    {"do": "kill"}                               {"event": "empty"}
    {"do": "last-words", "text"}
"""

import errno
import json
import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, NoReturn

from .process_tree import descendants, is_zombie, kill_all, signal_session

HEADER = struct.Struct("!I")
MAX_FDS = 253  # SCM_MAX_FD of Linux

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_KILL_AGAIN_MS = 20
"""While killed processes are still going away, how often their number is looked at."""

_ORPHANS_S = 10.0


def prctl(option: int, value: int) -> None:
    """Call prctl(2).

    Raises:
        OSError: the kernel refused.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def become_subreaper() -> None:
    """Adopt every descendant whose parent dies, instead of leaving it to PID 1."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Spawner:
    """The loop of the spawner process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._workers: dict[int, tuple[int, int]] = {}
        """Process id → (round, index) of each worker that has not been reaped."""
        self._killing = False
        self._watching = False
        """The agent waits to hear that nothing is left."""
        self._last_words = b""
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve the agent until it is gone and every descendant is dead."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = dict(poll.poll(_KILL_AGAIN_MS if self._killing else None))
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            self._reap()
            if self._channel.fileno() in ready and not self._receive():
                break
            if self._watching:
                self._clear()
        self._end_orphans()

    # --- the agent ---------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Take what the agent sent; return False at end-of-file."""
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, 1 << 20, MAX_FDS)
        except ConnectionError:
            return False
        for fd in fds:  # recv_fds drops its flags, so MSG_CMSG_CLOEXEC cannot be asked for
            os.set_inheritable(fd, False)
        if not data:
            return False
        self._buffer += data
        self._fds += fds
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                break
            request = json.loads(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
            self._do(request)
        return True

    def _do(self, request: dict[str, Any]) -> None:
        match request["do"]:
            case "spawn":
                self._spawn(request)
            case "signal":
                for pid in self._workers:
                    signal_session(pid, request["signal"], os.getpid())
            case "terminate":
                self._watching = True
                for pid in descendants(os.getpid()):
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGTERM)
            case "kill":
                self._killing = self._watching = True
            case "last-words":
                self._last_words = request["text"].encode()

    def _send(self, event: dict[str, Any]) -> None:
        data = json.dumps(event).encode()
        with suppress(ConnectionError):
            self._channel.sendall(HEADER.pack(len(data)) + data)

    # --- workers -----------------------------------------------------------------------------

    def _spawn(self, request: dict[str, Any]) -> None:
        pids: list[int] = []
        errors: list[tuple[int, int]] = []
        pipes: list[int] = []
        for worker in request["workers"]:
            fds = [self._fds.pop(0) for _ in range(worker["fds"])]
            pid, errors_from = _fork_worker(worker, fds)
            pids.append(pid)
            pipes.append(errors_from)
            self._workers[pid] = (request["round"], worker["index"])
            for fd in fds:
                os.close(fd)
        for index, pipe in enumerate(pipes):
            # End-of-file means that the program was started; four bytes are the errno why not.
            with os.fdopen(pipe, "rb") as file:
                data = file.read(4)
            if data:
                errors.append((index, int.from_bytes(data, "little")))
        self._send({"event": "spawned", "round": request["round"], "pids": pids, "errors": errors})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._workers:
                round_number, index = self._workers.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                self._send(
                    {"event": "exited", "round": round_number, "index": index, "status": code}
                )

    def _clear(self) -> None:
        if self._killing:
            kill_all(os.getpid())
            self._reap()
        if not descendants(os.getpid()):
            self._killing = self._watching = False
            self._send({"event": "empty"})

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


def _fork_worker(worker: dict[str, Any], fds: list[int]) -> tuple[int, int]:
    """Fork and execute one worker; return its pid and a pipe for the errno of a failure."""
    parent = os.getpid()
    errors_from, errors_to = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(errors_from)
        _become_worker(worker, fds, parent, errors_to)
    os.close(errors_to)
    return pid, errors_from


def _become_worker(worker: dict[str, Any], fds: list[int], parent: int, errors_to: int) -> NoReturn:
    """Turn this process into a worker. Nothing here returns or unwinds."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(128 + signal.SIGKILL)
        for fd, target in zip(fds, worker["targets"], strict=True):
            os.dup2(fd, target)  # the copy is inheritable
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Python ignores these two; a program that is not Python expects the default.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        # The spawner ignores what a terminal sends; a worker is as its agent was started.
        for number in worker["default_signals"]:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, worker["blocked_signals"])
        if worker["cpus"]:
            os.sched_setaffinity(0, worker["cpus"])
        environment = {**os.environ, **worker["env"]}
        argv = worker["argv"]
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(errors_to, (error.errno or errno.EIO).to_bytes(4, "little"))
    except BaseException:
        os.write(errors_to, errno.EINVAL.to_bytes(4, "little"))
    finally:
        os._exit(127)


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
