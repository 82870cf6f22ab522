"""The benchmarks' own arithmetic, and that the simulated agents and the comparison run at all."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("figures", "procfs", "jobs", "rows", "compare", "scale", "checks")


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of benchmarks/, which is no package."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def figures(load: Callable[[str], ModuleType]) -> Any:
    return load("figures")


@pytest.fixture
def procfs(load: Callable[[str], ModuleType]) -> Any:
    return load("procfs")


@pytest.fixture
def jobs(load: Callable[[str], ModuleType]) -> Any:
    return load("jobs")


def run_benchmark(name: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )


class TestFigures:
    def test_a_summary_is_the_median_not_the_mean(self, figures: Any) -> None:
        summary = figures.summarize([1.0, 100.0, 3.0, 2.0])
        assert (summary.count, summary.median, summary.minimum) == (4, 2.5, 1.0)

    @pytest.mark.parametrize(
        ("limit", "is_ratio", "ours", "theirs", "met"),
        [
            (0.25, True, [1.0, 2.0, 30.0], [4.0, 8.0, 9.0], True),
            (0.25, True, [1.1], [4.0], False),
            (0.25, True, [1.0], [], None),
            (0.25, True, [1.0], [0.0], None),
            (0.1, False, [0.1], [], True),
            (0.1, False, [0.2], [9.0], False),
            (0.1, False, [], [9.0], None),
        ],
    )
    def test_targets(
        self,
        figures: Any,
        limit: float,
        is_ratio: bool,
        ours: list[float],
        theirs: list[float],
        met: bool | None,
    ) -> None:
        target = figures.Target(limit, is_ratio)
        assert target.is_met(figures.summarize(ours), figures.summarize(theirs)) is met


class TestProcfs:
    def test_a_process_that_waits_wakes_up(self, procfs: Any) -> None:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waits:
            assert waits.stdin is not None
            assert waits.stdout is not None
            before = procfs.wakeups(waits.pid)
            while procfs.wakeups(waits.pid) == before:  # as long as it never waits
                waits.stdin.write(b"x\n")
                waits.stdin.flush()
                assert waits.stdout.readline() == b"x\n"
            waits.stdin.close()

    def test_helpers_are_neither_workers_nor_theirs(self, procfs: Any) -> None:
        # 10 agent ─ 11 spawner ─ 12, 13 workers, 13 ─ 14 data loader; 20 another agent
        parents = {10: 1, 11: 10, 12: 11, 13: 11, 14: 13, 20: 1, 21: 20}
        assert procfs.helpers(10, {12, 13}, parents) == [11]
        assert procfs.helpers(20, set(), parents) == [21]


class TestLines:
    OUTPUT = (
        "W0101 a warning of the launcher\n"
        "bench 0 0 2 0 100 1000\nbench 0 1 2 0 101 2500\n"
        "bench 1 0 2 1 102 4000\nbench 1 1 2 1 103 3900\nbench of 1 2 3 4 words\n"
    )

    def test_other_output_is_passed_over(self, jobs: Any) -> None:
        lines = jobs.parse_lines(self.OUTPUT)
        assert [(ln.attempt, ln.rank, ln.pid) for ln in lines] == [
            (0, 0, 100),
            (0, 1, 101),
            (1, 0, 102),
            (1, 1, 103),
        ]

    def test_the_last_worker_counts(self, jobs: Any) -> None:
        result = jobs.JobResult(0, jobs.parse_lines(self.OUTPUT))
        assert result.first_lines_s(0, 500) == pytest.approx(2000e-9)
        assert result.first_lines_s(1, 3000) == pytest.approx(1000e-9)

    def test_a_good_job(self, jobs: Any) -> None:
        lines = jobs.parse_lines(self.OUTPUT)
        assert jobs.check_lines(lines, jobs.Launcher.FT_RUN, jobs.Shape(), 2) == []

    @pytest.mark.parametrize(
        ("output", "problem"),
        [
            ("bench 0 0 2 0 1 1\n", "attempt 0: ranks [0] of 2"),
            ("bench 0 0 2 0 1 1\nbench 0 0 2 0 1 1\n", "attempt 0: ranks [0, 0] of 2"),
            ("bench 0 0 3 0 1 1\nbench 0 1 2 0 1 1\n", "attempt 0: another world size than 2"),
            ("bench 0 0 2 1 1 1\nbench 0 1 2 1 1 1\n", "attempt 0: restart counts [1]"),
            ("", "attempts [], not [0]"),
        ],
    )
    def test_what_is_wrong_is_told(self, jobs: Any, output: str, problem: str) -> None:
        lines = jobs.parse_lines(output)
        assert jobs.check_lines(lines, jobs.Launcher.FT_RUN, jobs.Shape(), 1) == [problem]

    def test_torchruns_count_per_node_is_known(self, jobs: Any) -> None:
        lines = jobs.parse_lines("bench 0 0 2 0 1 1\nbench 0 1 2 7 1 1\n")
        shape = jobs.Shape(agents=2, workers=1, nnodes="2")
        assert jobs.check_lines(lines, jobs.Launcher.TORCHRUN, shape, 1) == []
        assert jobs.check_lines(lines, jobs.Launcher.FT_RUN, shape, 1) != []


class TestCompare:
    def test_a_failed_run_is_told_and_not_counted(self, load: Callable[[str], Any]) -> None:
        compare, rows, jobs = load("compare"), load("rows"), load("jobs")
        measured = compare.Measured(rows.all_rows(None)[0])
        good = {"time": 4.0}
        measured.samples[jobs.Launcher.TORCHRUN] = [rows.Sample(good), rows.Sample(good)]
        measured.samples[jobs.Launcher.FT_RUN] = [
            rows.Sample({"time": 1.0}),
            rows.Sample(problems=["exit codes [1]"]),
        ]
        assert measured.failures() == ["start-1, run 2 of ft-run: exit codes [1]"]
        first = compare.report([measured]).splitlines()[2]
        cells = [cell.strip() for cell in first.split("|")[2:-1]]
        assert cells == ["4.00", "4.00", "1.00", "1.00", "0.25", "<= 0.25 x", "yes", "2+1 of 4"]

    @pytest.mark.slow
    def test_one_row_end_to_end(self, tmp_path: Path) -> None:
        path = tmp_path / "figures.json"
        result = run_benchmark("compare.py", "--quick", "--rows", "restart-1", "--json", path)
        assert result.returncode == 0, result.stdout + result.stderr
        row = json.loads(path.read_text())["rows"]["restart-1"]
        for launcher in ("torchrun", "ft-run"):
            (sample,) = row[launcher]
            assert sample["problems"] == []
            assert sample["values"]["time"] > 0

    def test_workers_are_released_also_before_they_wait(self, load: Callable[[str], Any]) -> None:
        jobs = load("jobs")
        with jobs.running_job(jobs.Launcher.FT_RUN, jobs.Shape(), "wait") as job:
            job.release()
            assert job.finish(attempts=1, timeout_s=60.0).problems == []

    @pytest.mark.long
    @pytest.mark.slow
    def test_the_row_of_the_spare_is_of_ft_run_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "figures.json"
        result = run_benchmark("compare.py", "--quick", "--rows", "spare-4", "--json", path)
        assert result.returncode == 0, result.stdout + result.stderr
        row = json.loads(path.read_text())["rows"]["spare-4"]
        (sample,) = row["ft-run"]
        assert sample["problems"] == []
        assert sample["values"]["ratio"] > 0
        assert row["torchrun"] == []

    def test_an_unknown_row_is_a_usage_error(self) -> None:
        result = run_benchmark("compare.py", "--rows", "start-9")
        assert result.returncode == 2
        assert "invalid value 'start-9' for --rows: expected some of start-1," in result.stderr


class TestWatching:
    @pytest.mark.parametrize("key", [pytest.param("step-100us", marks=pytest.mark.slow), "idle-1"])
    def test_all_monitoring_beside_none(self, load: Callable[[str], Any], key: str) -> None:
        rows, jobs = load("rows"), load("jobs")
        (row,) = [row for row in rows.all_rows(None) if row.key == f"monitored-{key}"]
        settings = rows.Settings(idle_s=0.2, settle_s=0.1)
        sample = row.measure(jobs.Launcher.FT_RUN, settings)
        assert sample.problems == []
        assert sample.values["with"] - sample.values["plain"] == sample.values["more"]


class TestElasticData:
    @pytest.mark.slow
    def test_steps_of_each_kind(self, tmp_path: Path) -> None:
        path = tmp_path / "figures.json"
        result = run_benchmark("elastic_data.py", "--quick", "--json", path)
        assert result.returncode == 0, result.stdout + result.stderr
        samples = json.loads(path.read_text())["samples"]
        assert [len(times) for times in samples.values()] == [20] * 3
        assert min(map(min, samples.values())) >= 10_000


class TestScale:
    def test_twenty_agents(self, tmp_path: Path) -> None:
        path = tmp_path / "scale.json"
        result = run_benchmark(
            "scale.py", "--agents", 20, "--repeats", 2, "--idle-s", 0, "--stacks", "--json", path
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert "20 agents: ft-run stacks took" in result.stdout
        (size,) = json.loads(path.read_text())["sizes"]
        # One report; per agent a stop, a confirmation and a start.
        assert [(cost["sent"], cost["received"]) for cost in size["rounds"]] == [(21, 40)] * 2


class TestChecks:
    @pytest.mark.slow
    def test_two_healthy_nodes(self, tmp_path: Path) -> None:
        path = tmp_path / "checks.json"
        result = run_benchmark(
            "checks.py", "--nodes", 2, "--runs", 1, "--no-import", "--json", path
        )
        assert result.returncode == 0, result.stdout + result.stderr
        (sample,) = json.loads(path.read_text())["sizes"]["2"]
        assert set(sample["verdicts"].values()) <= {"passed", "slow"}
        assert len(sample["verdicts"]) == 2

    def test_a_condemned_node_is_told_and_counted(
        self, load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FT_RUN_CHECK_FAULT", "fail@phase=solo")
        checks = load("checks")
        sample = checks.measure(1, "light", with_import=False)
        assert list(sample.verdicts.values()) == ["faulty"]
        assert "a node exited with 30" in sample.problems
        columns = [cell.strip() for cell in checks.report({1: [sample]}).splitlines()[2].split("|")]
        assert columns[-5:-1] == ["0", "0", "1", "1"]
