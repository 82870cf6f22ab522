"""The scripts of ``.ci`` leave a developer's environment alone, and are described."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(
    folder: Path, script: str, *args: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a copy of a script, in a folder that has nothing else."""
    (folder / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci" / script, folder / ".ci" / script)
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "VIRTUAL_ENV")}
    command = [str(folder / ".ci" / script), *args]
    return subprocess.run(
        command, env=env | variables, capture_output=True, text=True, check=False, timeout=60
    )


def test_an_environment_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    refused = run(tmp_path, "run")
    assert refused.returncode == 2
    assert ".ci/fast" in refused.stderr
    assert (tmp_path / ".venv").is_dir()


def test_what_is_missing_for_the_fast_tests_is_said_and_not_installed(tmp_path: Path) -> None:
    refused = run(tmp_path, "fast", PYTHON="/no/such/python")
    assert refused.returncode == 2
    assert "CONTRIBUTING.md" in refused.stderr
    assert not (tmp_path / ".venv").exists()


def test_an_unknown_step_of_the_nightly_run_is_refused(tmp_path: Path) -> None:
    refused = run(tmp_path, "nightly", "soack")
    assert refused.returncode == 2
    assert "the steps are: slow torchrun" in refused.stderr


@pytest.mark.parametrize(
    "script", [path.name for path in (ROOT / ".ci").iterdir() if path.is_file()]
)
def test_every_script_is_described(script: str) -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert f".ci/{script}" in guide or script == "types"


def test_every_step_of_the_nightly_run_is_described() -> None:
    (steps,) = re.findall(r"^all=\((.*)\)$", (ROOT / ".ci/nightly").read_text(), re.MULTILINE)
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert table == steps.split()
