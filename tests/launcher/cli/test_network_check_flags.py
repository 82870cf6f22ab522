"""The command line of the checks before training: what is refused, and what only remarked."""

from pathlib import Path

import pytest
from ft_run.checks.results import Rules
from ft_run.errors import UsageError
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.commands.launch import launch
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
        "--check-level has no effect without --network-check; add --network-check or omit it."
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PET_CHECK_LEVEL", "full"),
        ("PET_CHECK_TIMEOUT", "90"),
        ("PET_CHECK_REPORT", "r.json"),
        ("PET_EXCLUDE_STRAGGLER", "1"),
        ("PET_MIN_COMPUTE_TFLOPS", "500"),
    ],
)
def test_a_variable_that_may_be_meant_for_a_check_beside_the_job_is_remarked(
    name: str, value: str
) -> None:
    found = options(**{name: value})
    assert found.checks is None
    assert found.warnings == (f"{name} has no effect without --network-check: ignored.",)
    found = options("--network-check", **{name: value})
    assert found.checks is not None
    assert found.warnings == ()


def test_nodes_are_held_to_minimums_before_training() -> None:
    several = ("--nnodes", "1:2", "--rdzv-endpoint", "h:1", "--network-check")
    given = (*several, "--max-latency-us", "50", "--min-compute-tflops", "2.5")
    found = options(*given, PET_MIN_BANDWIDTH_GB_PER_S="9").checks
    assert found is not None
    assert found.spec.minimums == (
        *("compute_tflops=2.5", "latency_us=50.0", "bandwidth_gb_per_s=9.0"),
    )
    assert Rules.of(found.spec).minimums == {
        "compute_tflops": 2.5,
        "latency_us": 50.0,
        "bandwidth_gb_per_s": 9.0,
    }


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--min-memory-gb-per-s", "1"],
            "--min-memory-gb-per-s has no effect without --network-check; add",
        ),
        (["--network-check", "--max-latency-us", "1"], "needs several nodes, but --nnodes is 1"),
    ],
)
def test_a_minimum_that_no_node_can_meet_is_refused(argv: list[str], says: str) -> None:
    with pytest.raises(UsageError) as error:
        options(*argv)
    assert says in error.value.sentence


@pytest.mark.parametrize(
    ("minimum", "says"),
    [
        ("--min-intra-gb-per-s", "which needs several workers; expected --nproc-per-node 2"),
        ("--min-copy-gb-per-s", "which --accelerator cpu does not use; omit one"),
    ],
)
def test_a_minimum_that_no_worker_can_meet_is_refused(minimum: str, says: str) -> None:
    for command in (("check",), ("--network-check", "train.py")):
        found = parse([command[0], "--accelerator", "cpu", minimum, "1", *command[1:]], {})
        assert isinstance(found, LaunchOptions)
        with pytest.raises(UsageError, match=says):
            launch(found)


def test_a_report_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    report = tmp_path / "missing" / "r.json"
    logs = tmp_path / "logs"
    with pytest.raises(UsageError) as error:
        launch(options("--network-check", f"--check-report={report}", f"--log-dir={logs}"))
    assert "cannot write --check-report" in error.value.sentence
    assert not logs.exists()
