"""What is said where the kernel gives no process or file."""

import errno
import os
import resource

import pytest
from ft_run.launcher.machine.shortage import explained
from ft_run.launcher.spawner.messages import Spawned


def error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (errno.EAGAIN, "kernel.pid_max and kernel.threads-max of this host"),
        (errno.ENFILE, "raise fs.file-max"),
        (errno.ENOMEM, "raise the memory limit of the container, or start fewer workers"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_what_to_raise(code: int, end: str) -> None:
    assert explained(error(code)).endswith(end)


def test_the_limit_on_open_files_is_that_of_this_process() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"a process may have {limit} open files here: raise ulimit -n" in explained(
        error(errno.EMFILE)
    )


def test_what_is_a_shortage() -> None:
    spawned = Spawned(0, (5, 6, 0, 7), errors={0: errno.ENOENT, 1: errno.EAGAIN, 2: errno.EPERM})
    assert [spawned.is_shortage(rank) for rank in range(4)] == [False, True, True, False]
