"""Turns a forked process into a worker: session, streams, signals, program."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, NoReturn

from .prctl import die_with_parent
from .worker_watch import starter_env

NOT_EXECUTED = 127
"""Exit code of a worker whose program could not be executed, as in a shell."""


class NotBoundError(OSError):
    """Raised if a process cannot be bound to its CPUs."""


class Worker(NamedTuple):
    """The process to start, as the agent requests it."""

    position: int
    """Position in the request; for a training process, its local rank."""
    argv: list[str]
    env: dict[str, str]
    """Variables on top of the environment of this process."""
    targets: list[int]
    """The descriptors of its standard streams that are sent; it inherits the others."""
    default_signals: list[int]
    blocked_signals: list[int]
    is_watched: bool = False
    """Whether its page and its file for stacks follow its standard streams."""
    captures_errors: bool = False
    service: bool = False
    cpus: list[int] | None = None

    @property
    def fds(self) -> int:
        """The number of descriptors that are sent for it."""
        return len(self.targets) + (2 if self.is_watched else 0)


class Started(NamedTuple):
    """The result of starting workers."""

    pids: Sequence[int]
    """Process IDs, in the order of the workers; 0 if no process was created."""
    errors: Sequence[tuple[int, int]]
    """Index and code (``error_code``) of each worker that was not started: no process was created,
    or it could not execute its program and exits with 127."""


def start_workers(workers: Sequence[Worker], fds: Sequence[int]) -> Started:
    """Start workers by executing their programs.

    ``fds`` are the standard streams of each worker, and then its page and stacks file if watched.
    """
    pids: list[int] = []
    errors: list[tuple[int, int]] = []
    pipes: list[tuple[int, int]] = []
    streams = iter(fds)
    for worker in workers:
        pid, mine = 0, list(islice(streams, worker.fds))
        try:
            pid, errors_from = fork_worker(worker, mine)
            pipes.append((worker.position, errors_from))
        except OSError as error:
            errors.append((worker.position, error.errno or errno.EIO))
        pids.append(pid)
    for index, pipe in pipes:
        # End-of-file means that the program was started; otherwise four bytes are the error code.
        with os.fdopen(pipe, "rb") as file:
            data = file.read(4)
        if data:
            errors.append((index, code_from(data)))
    return Started(pids, errors)


def fork_worker(worker: Worker, fds: Sequence[int], keep: Sequence[int] = ()) -> tuple[int, int]:
    """Fork and execute one worker; return its process ID and a pipe.

    End-of-file on the pipe means that the program was started; otherwise four bytes are the error
    code (``code_from``). The program also gets ``keep``, under the same numbers.

    Raises:
        OSError: If no process or no descriptor is available.
    """
    parent = os.getpid()
    pid, pipe = fork_with_pipe()
    if pid == 0:
        for fd in keep:
            os.set_inheritable(fd, True)
        _become_worker(worker, fds, parent, pipe)
    return pid, pipe


def fork_with_pipe() -> tuple[int, int]:
    """Return the result of ``os.fork``, and this process's end of a pipe from child to parent.

    After an ``OSError``, no descriptor is left open.
    """
    read_from, write_to = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(read_from)
        os.close(write_to)
        raise
    mine, other = (write_to, read_from) if pid == 0 else (read_from, write_to)
    os.close(other)
    return pid, mine


def set_up(worker: Worker, fds: Sequence[int]) -> None:
    """Set up streams and CPU affinity of a worker in this process; raises ``NotBoundError``."""
    for fd, target in zip(fds, worker.targets, strict=False):
        os.dup2(fd, target)  # the copy is inheritable
    if worker.cpus:
        try:
            os.sched_setaffinity(0, worker.cpus)
        except OSError as error:
            raise NotBoundError(error.errno, error.strerror) from error


def error_code(error: OSError) -> bytes:
    """Return four bytes for the pipe to the parent: the errno, negative for ``NotBoundError``."""
    code = error.errno or errno.EIO
    signed = -code if isinstance(error, NotBoundError) else code
    return signed.to_bytes(4, "little", signed=True)


def code_from(data: bytes) -> int:
    """Return the code that ``error_code`` has encoded."""
    return int.from_bytes(data, "little", signed=True)


def explained(code: int, program: str) -> str:
    """Return why a program could not be executed, as part of a sentence."""
    if code < 0:
        return f"it cannot be bound to its CPUs (--numa-binding): {os.strerror(-code)}"
    return f"{program}: {os.strerror(code)}"


def _become_worker(worker: Worker, fds: Sequence[int], parent: int, errors_to: int) -> NoReturn:
    """Turn this process into a worker. Never returns or raises."""
    try:
        os.setsid()
        die_with_parent(parent)
        set_up(worker, fds)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Python ignores SIGPIPE and SIGXFSZ; other programs expect the default.
        # The spawner ignores signals of a terminal; a worker gets the dispositions with which its
        # agent was started.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *worker.default_signals):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, worker.blocked_signals)
        environment = {**os.environ, **worker.env}
        shared = (fds[-2], fds[-1]) if worker.is_watched else ()
        for fd in shared:
            os.set_inheritable(fd, True)
        if shared or worker.captures_errors:
            captured_pid = os.getpid() if worker.captures_errors else 0
            environment |= starter_env(environment, shared, captured_pid)
        os.execvpe(worker.argv[0], worker.argv, environment)
    except OSError as error:
        os.write(errors_to, error_code(error))
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os.write(errors_to, error_code(OSError(errno.EINVAL, "")))
    finally:
        os._exit(NOT_EXECUTED)
