"""The command line of the checks before training: what is refused, and what only remarked."""

from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli import parse
from ft_run.launcher.launch import launch
from ft_run.launcher.options import LaunchOptions


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def options(*argv: str, **environ: str) -> LaunchOptions:
    found = parse([*argv, "train.py"], environ)
    assert isinstance(found, LaunchOptions)
    return found


def test_a_flag_that_says_how_to_check_needs_the_one_that_says_that() -> None:
    with pytest.raises(UsageError) as error:
        options("--check-level", "full")
    assert error.value.sentence == (
        "--check-level says how nodes are checked, but nothing asks for checks;"
        " right would be --network-check beside it."
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PET_CHECK_LEVEL", "full"),
        ("PET_CHECK_TIMEOUT", "90"),
        ("PET_CHECK_REPORT", "r.json"),
        ("PET_EXCLUDE_STRAGGLER", "1"),
    ],
)
def test_a_variable_that_may_be_meant_for_a_check_beside_the_job_is_remarked(
    name: str, value: str
) -> None:
    found = options(**{name: value})
    assert found.checks is None
    assert found.remarks == (
        f"{name} says how nodes are checked, but nothing asks for checks:"
        " it is ignored without --network-check.",
    )
    found = options("--network-check", **{name: value})
    assert found.checks is not None
    assert found.remarks == ()


def test_a_report_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    report = tmp_path / "missing" / "r.json"
    logs = tmp_path / "logs"
    with pytest.raises(UsageError) as error:
        launch(options("--network-check", f"--check-report={report}", f"--log-dir={logs}"))
    assert "--check-report was given" in error.value.sentence
    assert not logs.exists()
