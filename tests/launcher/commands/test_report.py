"""``ft-run report`` as a command: what it prints and writes, and its errors."""

import json
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.cli.report_flags import ReportOptions
from ft_run.launcher.main import main

RECORDED = Path(__file__).parents[1] / "report" / "recorded"
FILES = [str(RECORDED / f"{node}.jsonl") for node in "abc"]


def test_options_may_follow_the_files() -> None:
    line = ["report", "a", "--trace", "t", "b", "-o=r.html", "--json", "c", "--rdzv-id", "j"]
    assert parse(line, {}) == ReportOptions(("a", "b", "c"), "r.html", "t", True, "j")
    with pytest.raises(UsageError, match=r"no event file was given; expected ft-run report EVENTS"):
        parse(["report", "--json"], {})
    with pytest.raises(UsageError, match="unknown flag '--jason'; did you mean --json"):
        parse(["report", "a", "--jason"], {})


def test_without_an_option_it_is_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *FILES]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("job digits-7b succeeded")
    assert not err


def test_files_that_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "r.html", tmp_path / "t.json"
    assert main(["report", *FILES, "-o", str(page), "--trace", str(trace), "--json"]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(trace.read_text())["otherData"]["job"] == "digits-7b"
    assert json.loads(capsys.readouterr().out)["summary"]["exit_code"] == 0
    assert main(["report", *FILES, "-o", str(page)]) == 0
    assert not capsys.readouterr().out


def test_errors_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    for line, words in (
        ([str(tmp_path / "none")], "no such file; expected"),
        ([str(tmp_path)], "no event files in"),
        ([str(script)], "is an event in JSON: expected"),
        ([*FILES, "-o", str(tmp_path / "x" / "r.html")], "No such file or directory; expected"),
        ([*FILES, "--rdzv-id", "k"], "no events of job 'k' in"),
    ):
        assert main(["report", *line]) == 2
        err = capfd.readouterr().err
        assert words in err
        assert err.startswith("ft-run: error: ")
        assert err.count("\n") == 1


def test_what_was_skipped_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torn = tmp_path / "a.jsonl"
    torn.write_bytes(Path(FILES[0]).read_bytes()[:-20])
    assert main(["report", str(torn)]) == 0
    assert capfd.readouterr().err == "ft-run report: 1 incomplete or invalid line(s) skipped\n"
