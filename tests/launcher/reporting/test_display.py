"""Tests of event lines; the live line has its tests in ``e2e``, on a real terminal."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator

import pytest
from ft_run.events.checks import ChecksProgressed
from ft_run.events.event import LogMessage, Severity
from ft_run.launcher.history.recorder import Recorder
from ft_run.launcher.reporting.display import Display


def test_an_event_is_one_line_with_the_time(capfd: pytest.CaptureFixture[str]) -> None:
    Display().event(LogMessage("round=3 node_rank=2 started"))
    line = capfd.readouterr().err
    assert line[2::3][:2] == "::"
    assert line[8:] == " ft-run round=3 node_rank=2 started\n"


@pytest.mark.parametrize(
    ("level", "shown"),
    [("DEBUG", 3), ("info", 2), ("WARNING", 1), ("ERROR", 0), ("nonsense", 2)],
)
def test_the_level_decides(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    level: str,
    shown: int,
) -> None:
    monkeypatch.setenv("LOGLEVEL", level)
    display = Display()
    for event in (ChecksProgressed("x"), LogMessage("x"), LogMessage("x", Severity.WARNING)):
        display.event(event)
    assert len(capfd.readouterr().err.splitlines()) == shown


def test_an_option_overrides_the_level_of_the_environment(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGLEVEL", "INFO")
    for level, shown in ((Severity.WARNING, 1), (Severity.DEBUG, 3)):
        display = Display(level=level)
        for event in (ChecksProgressed("x"), LogMessage("x"), LogMessage("x", Severity.WARNING)):
            display.event(event)
        assert len(capfd.readouterr().err.splitlines()) == shown


def test_lines_of_json_are_the_records_and_steer_no_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    display = Display(recorder=Recorder("j"), is_json=True)
    display.event(ChecksProgressed("not shown"))
    display.event(LogMessage("a\x1b[31m\n\x9b\x7fü", Severity.ERROR))
    display.event(LogMessage("louder"), Severity.WARNING)
    display.report("a\n  b\x1b[1m!\x1b[0m\n", is_styled=True)
    written = capfd.readouterr().err
    assert "ü" in written
    assert not {"\x1b", "\x9b", "\x7f"} & set(written)
    records = [json.loads(line) for line in written.splitlines()]
    assert [record["severity"] for record in records] == ["error", "warning", "info"]
    assert records[0]["sentence"] == "a\x1b[31m\n\x9b\x7fü"
    assert records[0]["job"] == "j"
    assert records[2]["sentence"] == "a\n  b!"


def test_nothing_but_text_gets_through(capfd: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.event(LogMessage("a\x1b[31m\r\nb\x00\x7f\x9b\tü …\udcff", Severity.ERROR))
    assert capfd.readouterr().err[8:] == " ft-run a\\x1b[31m\\r\\nb\\x00\\x7f\\x9b\tü …\\udcff\n"


def test_a_report_keeps_its_lines_and_nothing_else_gets_through(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Display().report("Traceback\n\tin \x1b]0;title\x07\r\n")
    Display().report("\x1b[1mbold\x1b[0m", is_styled=True)
    assert capfd.readouterr().err == (
        "\nTraceback\n\tin \\x1b]0;title\\x07\\r\n\n\x1b[1mbold\x1b[0m\n"
    )


def test_a_report_is_written_as_it_is_below_an_empty_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Display().report("a\nb")
    Display().report("c\n")
    assert capfd.readouterr().err == "\na\nb\n\nc\n"


def test_where_there_is_no_terminal_there_is_no_live_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    display = Display()
    assert not display.live
    display.open(lambda _: pytest.fail("there is no terminal to give back"))
    display.status("x")
    display.close()
    assert capfd.readouterr().err == ""


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """Standard error as a pipe that is full; the end to read from."""
    reader, writer = os.pipe()
    saved = os.dup(2)
    os.set_blocking(writer, False)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield reader
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        with contextlib.suppress(OSError):
            os.close(reader)


def test_a_reader_that_does_not_read_does_not_hold_the_job() -> None:
    with full_pipe() as reader:
        display = Display()
        display.event(LogMessage("first"))
        display.event(LogMessage("second"))  # this test hangs where these wait
        filling = os.read(reader, 10000)
        display.event(LogMessage("third"))
        display.close()
        lines = os.read(reader, 10000).decode().splitlines()
        display.event(LogMessage("last"))
        last = os.read(reader, 10000)
    assert filling == b"x" * 4096
    assert [line.split()[-1] for line in lines] == ["first", "second", "third"]
    assert last.endswith(b"last\n")


def test_the_reader_is_gone() -> None:
    with full_pipe() as reader:
        os.close(reader)
        display = Display()
        display.event(LogMessage("this is not read"))
        display.close()
