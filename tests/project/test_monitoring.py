"""``examples/monitoring``: the rules over made-up jobs, with ``promtool``, and the dashboard."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ft_run.launcher.history.accounting import Phase
from ft_run.launcher.metrics.catalogue import METRICS
from ft_run.launcher.metrics.job_metrics import STATES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "monitoring"
RULES = [FOLDER / name for name in ("recording_rules.yml", "alert_rules.yml")]
ALERTS = {
    "FtRunNoStep": "critical",
    "FtRunManyRestarts": "warning",
    "FtRunCheckpointOld": "warning",
    "FtRunNoSpareLeft": "warning",
    "FtRunSlowSteps": "warning",
    "FtRunDataWait": "warning",
}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (prometheus) is missing"
)


def promtool(*arguments: object) -> str:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_accepts_the_files() -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")
    promtool("check", "rules", *RULES)


# --- rules -------------------------------------------------------------------------------------

MINUTES = 180
EVERY = 20
"""Minutes between two checkpoints."""


class Job:
    """The metrics of a job of two nodes and a spare, a value for each minute."""

    def __init__(self) -> None:
        """Train for three hours without an incident."""
        minutes = range(MINUTES + 1)
        self.training = [60.0 * minute for minute in minutes]
        self.waiting = [0.0 for _ in minutes]
        self.lost = [0.0 for _ in minutes]
        self.data_wait = [0.1 * seconds for seconds in self.training]
        self.steps = [120.0 * minute for minute in minutes]
        self.last_step = [60.0 * minute for minute in minutes]
        self.checkpoint = [60.0 * (minute - minute % EVERY) for minute in minutes]
        self.restarts = [0.0 for _ in minutes]
        self.spares = [1.0 for _ in minutes]
        self.standing_by = [60.0 * minute for minute in minutes]

    def pause(self, first: int, minutes: int) -> None:
        """Do not train from a minute on: the nodes wait for a round."""
        for minute in range(first + 1, MINUTES + 1):
            late = min(minute - first, minutes)
            self.training[minute] -= 60 * late
            self.waiting[minute] += 60 * late
            self.steps[minute] -= 120 * late
            if minute <= first + minutes:
                self.last_step[minute] = self.last_step[first]

    def stop(self, first: int, *names: str) -> None:
        """Let values stay as they are from a minute on."""
        for name in names:
            values = getattr(self, name)
            values[first:] = [values[first]] * len(values[first:])

    def series(self) -> list[dict[str, str]]:
        found = {
            "ftrun_nodes{instance='a',state='training'}": [2.0] * (MINUTES + 1),
            "ftrun_nodes{instance='a',state='spare'}": self.spares,
            "ftrun_last_checkpoint_timestamp_seconds{instance='a'}": self.checkpoint,
            "ftrun_checkpoint_interval_seconds{instance='a'}": [60.0 * EVERY] * (MINUTES + 1),
        }
        spare = "instance='c'"
        found[f"ftrun_job_info{{{spare},job_id='run1',node='c'}}"] = [1.0] * (MINUTES + 1)
        found[f"ftrun_phase_seconds_total{{{spare},phase='standing by'}}"] = self.standing_by
        for node in "ab":
            at = f"instance='{node}'"
            found |= {
                f"ftrun_job_info{{{at},job_id='run1',node='{node}'}}": [1.0] * (MINUTES + 1),
                f"ftrun_phase_seconds_total{{{at},phase='training'}}": self.training,
                f"ftrun_phase_seconds_total{{{at},phase='waiting for nodes'}}": self.waiting,
                f"ftrun_lost_seconds_total{{{at},cause='worker'}}": self.lost,
                f"ftrun_restarts_total{{{at},cause='worker'}}": self.restarts,
                f"ftrun_restarts_total{{{at},cause='hang'}}": [0.0] * (MINUTES + 1),
                f"ftrun_rank_steps_total{{{at},rank='{ord(node)}'}}": self.steps,
                f"ftrun_rank_data_wait_seconds_total{{{at},rank='{ord(node)}'}}": (
                    self.data_wait if node == "b" else [0.0] * (MINUTES + 1)
                ),
                f"ftrun_last_step_timestamp_seconds{{{at}}}": self.last_step,
            }
        return [
            {"series": name.replace("{", "{job='ft-run',"), "values": " ".join(map(str, values))}
            for name, values in found.items()
        ]


def check(job: Job, folder: Path, expected: Sequence[dict[str, Any]]) -> None:
    """Let ``promtool`` evaluate expressions over a job."""
    test = {
        "rule_files": list(map(str, RULES)),
        "group_eval_order": ["ft-run-jobs", "ft-run-alerts"],
        "evaluation_interval": "1m",
        "tests": [
            {"interval": "1m", "input_series": job.series(), "promql_expr_test": list(expected)}
        ],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(test))
    promtool("test", "rules", path)


def firing(minute: int, *alerts: str) -> dict[str, Any]:
    """Expect exactly these alerts at a minute."""
    labels = "ALERTS{{alertname='{}',alertstate='firing',job_id='run1',severity='{}'}}"
    samples = [{"labels": labels.format(name, ALERTS[name]), "value": 1} for name in alerts]
    return {
        "expr": "ALERTS{alertstate='firing'}",
        "eval_time": f"{minute}m",
        "exp_samples": samples,
    }


def value(minute: int, expression: str, expected: float, labels: str = "") -> dict[str, Any]:
    sample = {"labels": labels, "value": expected}
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": [sample]}


@needs_promtool
def test_a_job_without_an_incident(tmp_path: Path) -> None:
    goodput = "job_id:ftrun_goodput:ratio_rate5m{job_id='run1'}"
    step_s = "job_id:ftrun_step_seconds:p50_rate5m{job_id='run1'}"
    checks = [firing(minute) for minute in range(1, MINUTES, 7)]
    checks += [value(30, f"round({goodput}, 0.001)", 1, "{job_id='run1'}")]
    checks += [value(30, f"round({step_s}, 0.001)", 0.5, "{job_id='run1'}")]
    check(Job(), tmp_path, checks)


@needs_promtool
def test_no_step_for_ten_minutes(tmp_path: Path) -> None:
    job = Job()
    job.stop(95, "last_step", "steps")  # a hang: its time still counts as training
    check(job, tmp_path, [firing(104), firing(106, "FtRunNoStep"), firing(130, "FtRunNoStep")])


@needs_promtool
def test_three_restarts_within_an_hour(tmp_path: Path) -> None:
    job = Job()
    for minute in (65, 85, 105):
        job.pause(minute, 2)
        for later in range(minute + 1, MINUTES + 1):
            job.restarts[later] += 1
            job.lost[later] += 30
    seen = [firing(104), firing(110, "FtRunManyRestarts"), firing(122, "FtRunManyRestarts")]
    seen += [firing(130), firing(170)]
    # Two of five minutes were no training, and half a minute was lost.
    goodput = "round(job_id:ftrun_goodput:ratio_rate5m, 0.01)"
    seen.append(value(109, goodput, round((3 * 60 - 30) / 300, 2), "{job_id='run1'}"))
    check(job, tmp_path, seen)


@needs_promtool
def test_a_checkpoint_that_is_three_intervals_old(tmp_path: Path) -> None:
    job = Job()
    job.stop(80, "checkpoint")
    last = 80 + 3 * EVERY
    checks = [firing(last), firing(last + 3, "FtRunCheckpointOld")]
    check(job, tmp_path, [*checks, firing(175, "FtRunCheckpointOld")])


@needs_promtool
def test_the_last_spare_has_taken_over(tmp_path: Path) -> None:
    job = Job()
    job.pause(60, 1)
    for minute in range(61, MINUTES + 1):
        job.restarts[minute] += 1
    job.spares[61:] = [0.0] * len(job.spares[61:])
    check(job, tmp_path, [firing(61), firing(64, "FtRunNoSpareLeft")])


@needs_promtool
def test_a_job_that_never_had_a_spare_lacks_none(tmp_path: Path) -> None:
    job = Job()
    job.spares = [0.0] * (MINUTES + 1)
    check(job, tmp_path, [firing(10), firing(170)])


@needs_promtool
@pytest.mark.parametrize(("factor", "is_slow"), [(1.2, False), (1.45, True)])
def test_steps_that_take_longer_than_during_the_day(
    tmp_path: Path, *, factor: float, is_slow: bool
) -> None:
    job = Job()
    at = 120
    for minute in range(at + 1, MINUTES + 1):
        job.steps[minute] = job.steps[at] + 120 / factor * (minute - at)
    slow = ["FtRunSlowSteps"] if is_slow else []
    check(job, tmp_path, [firing(at + 5), firing(at + 20, *slow), firing(at + 40, *slow)])


@needs_promtool
@pytest.mark.parametrize(
    ("share", "minutes", "is_long"),
    [(0.25, 90, False), (0.4, 90, True), (0.9, 12, False)],
)
def test_a_rank_that_waits_for_data(
    tmp_path: Path, *, share: float, minutes: int, is_long: bool
) -> None:
    job = Job()
    at = 80
    for minute in range(at + 1, MINUTES + 1):
        more_s = 60 * (share - 0.1) * min(minute - at, minutes)
        job.data_wait[minute] += more_s
    waits = ["FtRunDataWait"] if is_long else []
    ratio = "round(job_id:ftrun_data_wait:ratio_rate5m, 0.01)"
    checks = [firing(minute) for minute in range(at, at + 15, 2)]
    checks += [firing(at + 22, *waits), firing(at + 40, *waits)]
    checks += [value(at + 8, ratio, share, "{job_id='run1'}")]
    check(job, tmp_path, checks)


# --- names -------------------------------------------------------------------------------------


def recorded() -> set[str]:
    """Return the names that the recording rules make."""
    groups = yaml.safe_load(RULES[0].read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"]}


def expressions() -> list[str]:
    """Return all expressions of the rules and of the dashboard."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    found = [rule["expr"] for group in groups for rule in group["rules"]]
    return found + [target["expr"] for panel in panels() for target in panel.get("targets", [])]


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    return list(dashboard["panels"])


def test_all_names_exist() -> None:
    known = {metric.name for metric in METRICS}
    labels = {label for metric in METRICS for label in metric.labels} | {"job", "instance"}
    for text in expressions():
        names = set(re.findall(r"\b(?:job_id:)?ftrun_[a-z0-9_:]+", text))
        assert names
        assert names <= known | recorded(), text
        assert set(re.findall(r"([a-z_]+)\s*[=!]~?\s*\"", text)) <= labels, text
        assert set(re.findall(r"phase=\"([^\"]+)\"", text)) <= {phase.value for phase in Phase}
        assert set(re.findall(r"state=\"([^\"]+)\"", text)) <= set(STATES)


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    shown = panels()
    assert len({panel["id"] for panel in shown}) == len(shown)
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {
        "datasource",
        "job_id",
    }
    for panel in shown:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["datasource"]["uid"] == "${datasource}"
