"""Messages with file descriptors between two processes."""

import errno
import json
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ft_run.launcher.processes.ipc import Incoming, send

Pair = tuple[socket.socket, Incoming[Any]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Incoming[Any](theirs, json.loads)


def message(incoming: Incoming[Any]) -> Any:
    """Return the next message: one with descriptors comes in more than one piece."""
    while not (messages := incoming.receive()):
        assert messages is not None
    (only,) = messages
    return only


@contextmanager
def open_files_left(count: int) -> Iterator[None]:
    """This process may open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0) for _ in range(count + 1)]
    for fd in taken:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[count], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_come_in_their_order(pair: Pair) -> None:
    channel, incoming = pair
    pipes = [os.pipe() for _ in range(3)]
    send(channel, {"number": 1}, [read_from for read_from, _ in pipes])
    assert message(incoming) == {"number": 1}
    taken = incoming.take_fds(2) + incoming.take_fds(1)
    for number, ((read_from, write_to), fd) in enumerate(zip(pipes, taken, strict=True)):
        os.write(write_to, bytes([number]))
        assert os.read(fd, 1) == bytes([number])
        assert not os.get_inheritable(fd)
        for each in (read_from, write_to, fd):
            os.close(each)


def test_descriptors_that_are_lost_are_noticed_and_none_is_left_open(pair: Pair) -> None:
    channel, incoming = pair
    lowest = os.dup(0)
    os.close(lowest)
    with open_files_left(1):
        send(channel, {"number": 1}, [0, 0, 0])
        assert message(incoming) == {"number": 1}
        with pytest.raises(OSError, match="Too many open files") as caught:
            incoming.take_fds(3)
    assert caught.value.errno == errno.EMFILE
    again = os.dup(0)
    os.close(again)
    assert again == lowest
    send(channel, {"number": 2}, [0])
    assert message(incoming) == {"number": 2}
    (fd,) = incoming.take_fds(1)
    os.close(fd)


def test_those_of_the_next_message_do_not_stand_in_for_lost_ones(pair: Pair) -> None:
    channel, incoming = pair
    with open_files_left(1):
        send(channel, {"number": 1}, [0, 0, 0])
        assert message(incoming) == {"number": 1}
    send(channel, {"number": 2}, [0, 0])
    assert message(incoming) == {"number": 2}
    for count in (3, 2):
        with pytest.raises(OSError, match="Too many open files"):
            incoming.take_fds(count)
