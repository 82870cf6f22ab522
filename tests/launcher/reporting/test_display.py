"""Tests of event lines; the live line has its tests in ``e2e``, on a real terminal."""

import json

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
    events = ChecksProgressed("x"), LogMessage("x"), LogMessage("x", Severity.WARNING)
    for event in events:
        display.event(event)
    assert len(capfd.readouterr().err.splitlines()) == shown
    overriding = Display(level=Severity.DEBUG)
    for event in events:
        overriding.event(event)
    assert len(capfd.readouterr().err.splitlines()) == 3


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
    Display().report("\x1b[1mbold\x1b[0m", is_styled=True)  # each below an empty line
    assert capfd.readouterr().err == (
        "\nTraceback\n\tin \\x1b]0;title\\x07\\r\n\n\x1b[1mbold\x1b[0m\n"
    )


def test_where_there_is_no_terminal_there_is_no_live_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    display = Display()
    assert not display.live
    display.open(lambda _: pytest.fail("there is no terminal to give back"))
    display.status("x")
    display.close()
    assert capfd.readouterr().err == ""
