"""A console that is written to without waiting, whatever it is."""

import contextlib
import os
import pty
import socket
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


def test_a_pipe_a_terminal_and_a_socket_are_never_waited_for() -> None:
    ends = [os.pipe(), pty.openpty(), tuple(end.detach() for end in socket.socketpair())]
    for reader, writer in ends:
        console = ConsoleFile(writer)
        assert fill(console) > 0
        assert not console.is_writable(0.0)
        assert os.get_blocking(writer), "others that write to it must not notice"
        console.close()
        os.close(reader)
        os.close(writer)


def test_a_file_takes_everything(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        console = ConsoleFile(file.fileno())
        assert console.write(b"a\nb") == 3
        console.close()
    assert (tmp_path / "out").read_bytes() == b"a\nb"
