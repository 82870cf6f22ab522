"""Where the report of checks goes: files are replaced in one step, all else is written to."""

import os
import select
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.preflight import report_file
from ft_run.launcher.preflight.report_file import check_report_path, write_report

REPORT = '{"conclusion": "fine"}'
LONG = "x" * (1 << 20)


def test_a_file_is_replaced_in_one_step_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with path.open() as reader:
        check_report_path(str(path))
        write_report(str(path), REPORT)
        assert path.read_text() == REPORT + "\n"
        assert reader.read() == "old"  # a reader that had it open sees no half of the new one
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_to_a_file_stays_a_link(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "report.json", tmp_path / "link"
    if exists:
        target.write_text("old")
    link.symlink_to(target)
    check_report_path(str(link))
    write_report(str(link), REPORT)
    assert link.is_symlink()
    assert target.read_text() == REPORT + "\n"


@pytest.mark.parametrize("kind", ["folder", "link to a folder", "in a folder that is missing"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, kind: str) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    paths = {"folder": folder, "link to a folder": link}
    path = str(paths.get(kind, tmp_path / "missing" / "report.json"))
    with pytest.raises(UsageError) as error:
        check_report_path(path)
    assert error.value.sentence == (
        f"cannot write --check-report {path!r}; expected a file in a directory that exists and is "
        "writable."
    )
    with pytest.raises(UsageError, match=r"cannot write --check-report .*: "):
        write_report(path, REPORT)
    assert link.is_symlink()


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    check_report_path(str(path))
    out = tmp_path / "out"
    with out.open("wb") as file, subprocess.Popen(["cat", path], stdout=file) as cat:
        hold = os.open(path, os.O_WRONLY)  # returns when there is a reader
        write_report(str(path), LONG)
        os.close(hold)
        assert cat.wait(60) == 0
    assert out.read_text() == LONG + "\n"
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_pipe_without_a_reader_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError) as error:
        write_report(str(path), REPORT)
    expected = f"cannot write --check-report {str(path)!r}: it is a pipe without a reader."
    assert error.value.sentence == expected


def test_a_reader_that_has_stopped_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_file, "_READER_S", 0.01)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(UsageError, match="Connection timed out"):
        write_report(str(path), LONG)
    os.close(fd)


def test_a_slow_reader_is_not_waited_for_anew_after_each_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_file, "_READER_S", 0.1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    is_over = threading.Event()

    def read_slowly() -> None:
        while not is_over.wait(0.02):  # each time before the writer would give it up
            with suppress(BlockingIOError):
                os.read(fd, select.PIPE_BUF)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    try:
        with pytest.raises(UsageError, match="Connection timed out"):
            write_report(str(path), LONG)
    finally:
        is_over.set()
        reader.join()
        os.close(fd)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.stat(os.devnull).st_rdev)
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        pytest.skip("devices cannot be used here")
    check_report_path(str(path))
    write_report(str(path), REPORT)
    assert stat.S_ISCHR(path.stat().st_mode)


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("to_a_file", [True, False])
def test_standard_output_is_gone_on_with(tmp_path: Path, path: str, to_a_file: bool) -> None:
    program = (
        "from ft_run.launcher.preflight.report_file import check_report_path, write_report\n"
        "print('before')\n"
        f"check_report_path({path!r})\n"
        f"write_report({path!r}, 'report')\n"
        "print('after')\n"
    )
    out = tmp_path / "out"
    with out.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            stdout=file if to_a_file else subprocess.PIPE,
        )
    assert (out.read_bytes() if to_a_file else done.stdout) == b"before\nreport\nafter\n"
