"""Where lines of events go: whole lines only, whatever the disk or the reader does."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.reporting.outlets import RotatedFile, open_outlet


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Returns a function that sets how many bytes the disk still takes."""
    free = [1 << 30]
    write = os.write

    def limited(fd: int, data: bytes) -> int:
        if not free[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(fd, bytes(data)[: free[0]])
        free[0] -= done
        return done

    monkeypatch.setattr(os, "write", limited)

    def leave(count: int) -> None:
        free[0] = count

    return leave


def test_a_file_is_rotated_by_size(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    outlet = RotatedFile(str(path), max_bytes=10)
    for line in (b"1234\n", b"5678\n", b"9\n", b"a line that is longer than the limit\n", b"b\n"):
        outlet.write(line)
    outlet.close()
    assert path.read_bytes() == b"b\n"
    assert (tmp_path / "e.jsonl.1").read_bytes() == b"a line that is longer than the limit\n"
    assert len(list(tmp_path.iterdir())) == 2


def test_two_processes_that_share_a_file_rotate_it_once(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    one, other = (RotatedFile(str(path), max_bytes=10) for _ in range(2))
    one.write(b"1111\n")
    other.write(b"2222\n")
    one.write(b"3333\n")
    other.write(b"4444\n")
    assert (tmp_path / "e.jsonl.1").read_bytes() == b"1111\n2222\n"
    assert path.read_bytes() == b"3333\n4444\n"


def test_a_part_of_a_line_does_not_stay(tmp_path: Path, full_disk: Callable[[int], None]) -> None:
    path = tmp_path / "e.jsonl"
    outlet = RotatedFile(str(path))
    outlet.write(b"whole\n")
    full_disk(3)
    with pytest.raises(OSError, match="No space"):
        outlet.write(b"lost\n")
    assert path.read_bytes() == b"whole\n"
    full_disk(100)
    outlet.write(b"again\n")
    assert path.read_bytes() == b"whole\nagain\n"


def test_a_part_that_cannot_be_removed_is_a_line_of_its_own(
    tmp_path: Path, full_disk: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e.jsonl"
    outlet = RotatedFile(str(path))
    full_disk(3)
    monkeypatch.setattr(os, "ftruncate", lambda fd, size: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError, match="No space"):
        outlet.write(b"lost\n")
    full_disk(100)
    outlet.write(b"again\n")
    assert path.read_bytes() == b"los\nagain\n"


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    outlet = RotatedFile(str(path))
    outlet.write(b"1\n")
    path.rename(tmp_path / "old")
    outlet.write(b"2\n")
    assert path.read_bytes() == b"2\n"


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for target, why in (
        (tmp_path / "none" / "e", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "fifo", "No such device or address"),
        (Path(os.devnull), "Not a regular file"),
    ):
        with pytest.raises(UsageError) as refused:
            open_outlet(str(target))
        assert refused.value.sentence == (
            f"cannot write events to '{target}': {why}; expected a file in a writable directory "
            "or - with --events."
        )
