"""Memory shared with workers: a worker cannot shrink it, which would end its agent by SIGBUS."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import pytest
from ft_run.launcher.preemption.pages import NoticePage
from ft_run.launcher.processes.shared_memory import shared_file, shared_page
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.workers.rank_memory import RankMemory


@contextmanager
def page_of_a_watched_worker() -> Iterator[int]:
    with closing(WorkerWatch()) as watch:
        yield watch.fds[0]


@contextmanager
def stacks() -> Iterator[int]:
    with closing(WorkerWatch()) as watch:
        os.write(watch.fds[1], b"stacks")
        yield watch.fds[1]


@contextmanager
def page_of_snapshots() -> Iterator[int]:
    with closing(RankMemory()) as memory:
        yield memory.fds[0]


@contextmanager
def page_of_notices() -> Iterator[int]:
    with (
        closing(asyncio.new_event_loop()) as loop,
        closing(NoticePage(lambda: None, saves=False)) as notices,
    ):
        notices.listen(loop)
        yield notices._fd


@pytest.mark.parametrize(
    "shared", [page_of_a_watched_worker, stacks, page_of_snapshots, page_of_notices]
)
def test_a_worker_cannot_shrink(shared: Callable[[], AbstractContextManager[int]]) -> None:
    with shared() as fd:
        theirs = os.dup(fd)
        size = os.fstat(theirs).st_size
        for smaller in (0, size - 1):
            with pytest.raises(PermissionError):
                os.ftruncate(theirs, smaller)
        os.close(theirs)


def test_a_page_is_mapped_and_starts_with_zeros() -> None:
    fd, page = shared_page("test", 4096)
    assert page[:] == bytes(4096)
    os.pwrite(fd, b"7", 5)
    assert page[5:6] == b"7"
    page.close()
    os.close(fd)


def test_a_file_grows() -> None:
    fd = shared_file("test")
    os.write(fd, b"abc")
    assert os.fstat(fd).st_size == 3
    os.close(fd)


def test_a_file_is_not_inherited() -> None:
    fd = shared_file("test")
    assert not os.get_inheritable(fd)
    os.close(fd)
