"""Files at paths that workers can write to: nothing there makes the reader wait."""

import os
from pathlib import Path

import pytest
from ft_run.launcher.processes.regular_file import head_of_file, tail_of_file


def test_the_beginning_and_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_bytes(b"0123456789")
    assert tail_of_file(str(path), 4) == b"6789"
    assert tail_of_file(str(path), 100) == b"0123456789"
    assert head_of_file(str(path), 4) == b"0123"
    assert head_of_file(str(path), 100) == b"0123456789"


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_link_to_a_file(path: Path) -> None:
    path.with_name("secret").write_text("of another")
    path.symlink_to("secret")


@pytest.mark.timeout(20)  # where they wait, they do it for ever
@pytest.mark.parametrize(
    "make", [None, make_fifo, make_link_to_zeros, make_link_to_a_file, Path.mkdir]
)
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, make) -> None:
    path = tmp_path / "odd"
    if make is not None:
        make(path)
    assert head_of_file(str(path), 4) is None
    assert tail_of_file(str(path), 4) == b""


def test_a_path_that_is_none_is_not_read() -> None:
    assert head_of_file("a\0b", 4) is None
