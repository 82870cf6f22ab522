"""The reason of a failure in the file that Kubernetes shows."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ft_run.launcher.main import main
from ft_run.launcher.reporting.termination_message import VARIABLE, write_termination_message


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    path.write_text("an earlier message, which is longer")
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_message_has_reason_and_exit_code(log: Path) -> None:
    write_termination_message("rank 1 failed", 1)
    assert log.read_text() == "rank 1 failed (exit code 1)"


def test_long_message_is_cut_between_characters(log: Path) -> None:
    write_termination_message("\u00fc" * 5000, 40)
    written = log.read_bytes()
    assert 4090 < len(written) <= 4096
    assert written.decode().endswith("\u00fc... (exit code 40)")


def test_control_characters_are_escaped(log: Path) -> None:
    write_termination_message("rank 0:\n\x1b[2J", 1)
    assert log.read_text() == "rank 0:\\n\\x1b[2J (exit code 1)"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("target", path)])
def test_only_a_regular_file_is_written(log: Path, make: Callable[[Path], None]) -> None:
    log.unlink()
    make(log)
    write_termination_message("rank 1 failed", 1)
    assert not (log.parent / "target").exists()


def test_missing_file_is_not_created(log: Path) -> None:
    log.unlink()
    write_termination_message("rank 1 failed", 1)
    assert not log.exists()


def test_usage_error_is_the_message(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--nnodes", "two", "train.py"]) == 2
    sentence = capfd.readouterr().err.removeprefix("ft-run: error: ").rstrip()
    assert log.read_text() == f"{sentence} (exit code 2)"


def test_failing_probe_leaves_the_message_alone(log: Path) -> None:
    before = log.read_text()
    assert main(["status", "--timeout", "0"]) == 2
    assert log.read_text() == before
