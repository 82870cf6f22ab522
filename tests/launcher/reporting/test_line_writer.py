"""Lines on standard error of which the reader is slow, late or gone."""

import contextlib
import errno
import fcntl
import os
import re
import threading
from collections.abc import Iterator

import pytest
from ft_run.launcher.logs.console_file import ConsoleFile
from ft_run.launcher.reporting import line_writer
from ft_run.launcher.reporting.line_writer import LineWriter
from ft_run.launcher.reporting.standard_output import say_last

pytestmark = pytest.mark.timeout(60)  # where a reader is waited for, it is for ever


@contextlib.contextmanager
def pipe_as_stderr(*, filled: int = 0) -> Iterator[int]:
    """Standard error as a pipe of 4096 bytes; the end to read from."""
    reader, writer = os.pipe()
    saved = os.dup(2)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * filled)
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield reader
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(reader)


def test_the_end_waits_for_a_slow_reader() -> None:
    text = "".join(f"line {number}\n" for number in range(2000))
    with pipe_as_stderr() as reader:
        found = bytearray()

        def read() -> None:
            while not found.endswith(b"line 1999\n"):
                found.extend(os.read(reader, 100))

        thread = threading.Thread(target=read)
        writer = LineWriter()
        writer.put(text)
        thread.start()
        writer.finish()
        thread.join()
    assert found.decode() == text


def test_what_nothing_reads_in_time_is_written_when_it_is_read() -> None:
    with pipe_as_stderr() as reader:
        writer = LineWriter()
        writer.put("read\n")
        assert os.read(reader, 10_000) == b"read\n"
        os.write(2, b"x" * 4096)
        writer.put("one\ntwo\n")
        writer.put("three\n")
        writer.hurry()
        writer.finish()
        writer.put("four\n")
        assert os.read(reader, 10_000) == b"x" * 4096
        writer.put("last\n")
        told = os.read(reader, 10_000)
    assert told == b"one\ntwo\nthree\nfour\nlast\n"


def test_the_wait_for_a_reader_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "_LAST_WORDS_S", 0.2)
    with pipe_as_stderr(filled=4096) as reader:
        writer = LineWriter()
        writer.put("one\n")
        writer.finish()
        assert not writer.has_all_written
        assert os.read(reader, 10_000) == b"x" * 4096
        writer.flush()
        assert os.read(reader, 10_000) == b"one\n"


def test_a_line_of_which_a_part_is_written_is_not_torn() -> None:
    line = "y" * 10_000 + "\n"
    with pipe_as_stderr() as reader:
        writer = LineWriter()
        writer.put(line)
        writer.put("next\n")
        writer.flush()
        found = os.read(reader, 100_000)
        while not writer.has_all_written:
            writer.flush()
            found += os.read(reader, 100_000)
        writer.put("last\n")
        found += os.read(reader, 100_000)
    assert found.decode() == line + "next\nlast\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_an_error_that_passes_costs_only_the_lines_it_met(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with pipe_as_stderr() as reader:
        writer = LineWriter()
        with monkeypatch.context() as failing:
            failing.setattr(ConsoleFile, "write", fail)
            writer.put("lost\n")
        writer.put("next\n")
        assert os.read(reader, 10_000) == b"next\n"


def test_what_is_kept_for_a_reader_is_bounded() -> None:
    with pipe_as_stderr(filled=4096) as reader:
        writer = LineWriter()
        for _ in range(3000):
            writer.put("z" * 999 + "\n")
        os.read(reader, 10_000)
        writer.flush()
        found = os.read(reader, 100_000)
        while not writer.has_all_written:
            writer.flush()
            found += os.read(reader, 100_000)
    (note,) = re.findall(rb"^\[(\d+) lines", found, re.MULTILINE)
    kept = found.count(b"z\n")
    assert int(note) + kept == 3000
    assert kept * 1000 <= (1 << 20) + 1000


def test_the_last_sentence_waits_for_no_reader_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "_LAST_WORDS_S", 0.2)
    with pipe_as_stderr(filled=4096) as reader:
        say_last("ft-run: error: nothing reads this")
        assert os.read(reader, 10_000) == b"x" * 4096
        say_last("ft-run: error: \x1b[31mred\n")
        assert os.read(reader, 10_000) == b"ft-run: error: \\x1b[31mred\\n\n"


def test_standard_error_is_closed() -> None:
    saved = os.dup(2)
    os.close(2)
    try:
        writer = LineWriter()
        writer.put("nowhere\n")
        writer.finish()
    finally:
        os.dup2(saved, 2)
        os.close(saved)
