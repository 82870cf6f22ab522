"""Turns a forked process into a worker: session, streams, signals, program."""

import errno
import os
import signal
from collections.abc import Sequence
from typing import Any, NoReturn


def fork_worker(
    worker: dict[str, Any], fds: Sequence[int], keep: Sequence[int] = ()
) -> tuple[int, int]:
    """Fork and execute one worker.

    Args:
        worker: what ``SpawnerClient.spawn`` says of it.
        fds: what become its standard streams, in the order of ``worker["targets"]``.
        keep: file descriptors that its program has too, under the same numbers.

    Returns:
        Its process id, and a pipe: end-of-file means that the program was started; four bytes
        are the errno why not.
    """
    parent = os.getpid()
    errors_from, errors_to = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(errors_from)
        for fd in keep:
            os.set_inheritable(fd, True)
        _become_worker(worker, fds, parent, errors_to)
    os.close(errors_to)
    return pid, errors_from


def set_up(worker: dict[str, Any], fds: Sequence[int]) -> None:
    """Give this process the streams and the CPUs of a worker.

    Raises:
        OSError: the kernel refused.
    """
    for fd, target in zip(fds, worker["targets"], strict=True):
        os.dup2(fd, target)  # the copy is inheritable
    if worker["cpus"]:
        os.sched_setaffinity(0, worker["cpus"])


def _become_worker(
    worker: dict[str, Any], fds: Sequence[int], parent: int, errors_to: int
) -> NoReturn:
    """Turn this process into a worker. Nothing here returns or unwinds."""
    try:
        from .prctl import die_with_parent  # loaded by the spawner; the agent needs no ctypes

        os.setsid()
        die_with_parent(parent)
        set_up(worker, fds)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Python ignores these two; a program that is not Python expects the default.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        # The spawner ignores what a terminal sends; a worker is as its agent was started.
        for number in worker["default_signals"]:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, worker["blocked_signals"])
        environment = {**os.environ, **worker["env"]}
        argv = worker["argv"]
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(errors_to, (error.errno or errno.EIO).to_bytes(4, "little"))
    except BaseException:
        os.write(errors_to, errno.EINVAL.to_bytes(4, "little"))
    finally:
        os._exit(127)
