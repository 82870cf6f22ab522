"""The command line of ``ft-run rehearse``."""

from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.cli.rehearse_flags import RehearseOptions


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Return the path of a script."""
    (tmp_path / "train.py").touch()
    return str(tmp_path / "train.py")


def test_own_options_are_separated_from_those_of_the_job(script: str) -> None:
    words = [
        "--steps=12",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--only",
        "stop",
        "--ig",
        "seen",
    ]
    environ = {"PET_MAX_RESTARTS": "2"}  # rehearsed jobs have it too
    options = parse(["rehearse", *words, "--only", "kill", script, "--steps", "3"], environ)
    assert isinstance(options, RehearseOptions)
    assert (options.steps, options.only, options.ignore) == (12, ("stop", "kill"), ("seen",))
    assert options.job == ("--nproc-per-node=2",)
    assert options.script == (script, "--steps", "3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nnodes", "2"), "unknown flag '--nnodes'"),
        (("--rdzv-endpoint", "a:1"), "unknown flag '--rdzv-endpoint'"),
        (("--nodes", "3"), "invalid value '3' for --nodes: expected 1 or 2"),
        (("--steps", "2"), "expected a whole number >= 6"),
        (("--only", "all"), "expected worker, stop, kill, node or workers"),
        (("--max-restarts", "x"), "invalid value"),
    ],
)
def test_bad_options_are_refused(words: tuple[str, ...], message: str, script: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(["rehearse", *words, script], {})


def test_missing_script_is_refused() -> None:
    with pytest.raises(UsageError, match="no script"):
        parse(["rehearse", "no-such-file.py"], {})
