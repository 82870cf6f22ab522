"""A console that is written to without waiting, whatever it is."""

import contextlib
import os
import pty
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_run.launcher.logs.console_file import ConsoleFile

pytestmark = pytest.mark.timeout(60)


def fill(console: ConsoleFile) -> int:
    """Write until nothing is taken; return how much was."""
    taken = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            taken += console.write(b"x" * 99 + b"\n")
    return taken


def close(*fds: int) -> None:
    """Close both ends, and what a console has opened again."""
    for fd in {*fds}:
        os.close(fd)


def test_a_pipe_a_terminal_and_a_socket_are_never_waited_for() -> None:
    ends = [os.pipe(), pty.openpty(), tuple(end.detach() for end in socket.socketpair())]
    for reader, writer in ends:
        console = ConsoleFile(writer)
        assert fill(console) > 0
        assert not console.is_writable(0.0)
        assert os.get_blocking(writer), "others that write to it must not notice"
        if console._socket is not None:
            console._socket.close()
        close(console.fd, reader, writer)


def test_a_file_takes_everything(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        console = ConsoleFile(file.fileno())
        assert console.write(b"a\nb") == 3
    assert (tmp_path / "out").read_bytes() == b"a\nb"


@pytest.fixture(params=[True, False], ids=["opened again", "shared"])
def pipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleFile]:
    """A pipe that can be opened again, or cannot, as the terminal of another user."""
    reader, writer = os.pipe()
    if not request.param:

        def refuse(*_: object) -> int:
            raise PermissionError

        monkeypatch.setattr(os, "open", refuse)
    console = ConsoleFile(writer)
    monkeypatch.undo()
    yield console
    close(console.fd, reader, writer)


def test_whole_lines_are_written_as_one(pipe: ConsoleFile) -> None:
    assert pipe.write((b"x" * 99 + b"\n") * 100) == 4000, "more than PIPE_BUF may be torn"


def test_a_pipe_is_not_waited_for_however_long_a_line_is(pipe: ConsoleFile) -> None:
    with contextlib.suppress(BlockingIOError):
        while pipe.write(b"x" * 1_000_000) > 0:
            pass
    assert not pipe.is_writable(0.0)
