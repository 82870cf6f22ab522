"""A recorded job of two nodes and a spare, in two attempts.

In the first a worker raises an exception, one is killed, one hangs, and one raises again, which is
too much; in the second a node is lost, and the spare takes its place.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from ft_run.launcher.commands.report import read_report
from ft_run.launcher.report.job_report import JobReport
from ft_run.launcher.report.lanes import GONE
from ft_run.launcher.report.page import json_of, page_of
from ft_run.launcher.report.reading import Reading
from ft_run.launcher.report.text import text_of
from ft_run.launcher.report.trace import trace_of
from ft_run.launcher.reporting.time_report import accounted, table

RECORDED = Path(__file__).parent / "recorded"
CLOSING_TABLE = """\
Where the time went:
  training                        1:57    71.4%
  importing and building        44.9 s    27.4%
  starting ft-run                1.3 s     0.8%
  waiting for nodes             480 ms     0.3%
  stopping                      195 ms     0.1%
  total                           2:44   100.0%
1 restart (node_lost: 1), 25.8 s: importing and building 25.7 s, stopping 146 ms, starting workers \
14 ms, waiting for nodes 2.8 ms
Goodput 71.4%"""
"""What node vm/0 showed at the end of the second attempt."""


@pytest.fixture(scope="module")
def report() -> JobReport:
    return read_report([str(path) for path in RECORDED.glob("*.jsonl")], None, Reading())


def records(node: str, name: str) -> list[Any]:
    lines = (RECORDED / f"{node}.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["name"] == name]


def test_the_time_of_each_attempt_is_that_of_its_closing_table(report: JobReport) -> None:
    expected = records("a", "time.accounted")
    assert len(report.attempts) == len(expected) == 2
    for attempt, event in zip(report.attempts, expected, strict=True):
        found = accounted(attempt.account)
        assert found.phases == pytest.approx(event["phases"], abs=2e-3)
        assert found.restart_phases == pytest.approx(event["restart_phases"], abs=2e-3)
        assert found.lost == pytest.approx(event["lost"], abs=2e-3)
        assert (found.restarts, found.goodput) == (event["restarts"], event["goodput"])
        assert attempt.number == event["attempt"]
    assert table(accounted(report.attempts[1].account)) == CLOSING_TABLE


def test_the_time_of_all_attempts(report: JobReport) -> None:
    seconds = sum(attempt.account.seconds for attempt in report.attempts)
    phases = accounted(report.account).phases
    assert report.account.seconds == pytest.approx(seconds + phases["between attempts"], abs=0.01)
    assert phases["between attempts"] == pytest.approx(4.6, abs=0.2)
    training = sum(event["phases"]["training"] for event in records("a", "time.accounted"))
    assert phases["training"] == pytest.approx(training)
    assert report.account.restarts == {"worker": 2, "hang": 1, "node_lost": 1}
    assert [(one.exit_code, one.nodes) for one in report.attempts] == [(1, 2), (0, 2)]


def test_the_restarts(report: JobReport) -> None:
    found = [(one.run, one.round, one.kind, one.redo_steps) for one in report.restarts]
    assert found == [
        (1, 1, "worker", 0),
        (1, 2, "worker", 1),
        (1, 3, "hang", 0),
        (2, 1, "node_lost", 0),
    ]
    total: dict[str, float] = {}
    for one in report.restarts:
        assert one.down_s is not None
        for name, seconds in one.phases.items():
            total[name] = total.get(name, 0.0) + seconds
    hang = report.restarts[2]
    assert hang.detect_s is not None
    assert 5.0 < hang.detect_s < 6.0  # without a step
    assert 10.0 < hang.phases["no progress"] < 10.5  # to be sure
    assert total == pytest.approx(accounted(report.account).restart_phases, abs=1e-5)


def test_the_failures(report: JobReport) -> None:
    found = [(one.run, one.node, one.is_root, one.note.kind) for one in report.failures]
    assert found == [
        (1, "vm/1", True, "worker"),
        (1, "vm/0", True, "worker"),
        (1, "", True, "hang"),
        (1, "vm/1", True, "worker"),
        (2, "vm/1", True, "node_lost"),
    ]
    assert "loss is nan at step 500" in report.failures[0].note.lines[-1]
    assert {lane.node: lane.failures for lane in report.lanes} == {"vm/0": 1, "vm/1": 3, "vm/2": 0}


def test_what_each_node_did(report: JobReport) -> None:
    names = list(report.names)
    of_nodes = {
        lane.node: [names[phase] if phase != GONE else "" for phase in lane.phases]
        for lane in report.lanes
    }
    assert of_nodes["vm/2"] == [
        *("starting ft-run", "waiting for nodes", "standing by", "starting workers"),
        *("importing and building", "training", "stopping", ""),
    ]
    assert of_nodes["vm/1"].count("starting ft-run") == of_nodes["vm/1"].count("") == 2
    assert names[report.job_lane.phases[-2]] == "stopping"
    assert "between attempts" in [names[phase] for phase in report.job_lane.phases[:-1]]
    for lane in report.lanes:
        assert lane.starts_s == sorted(lane.starts_s)


def test_the_text(report: JobReport) -> None:
    text = text_of(report)
    assert text.startswith(
        "job digits-7b succeeded: all workers succeeded (1 of 3 restarts used)\n"
    )
    assert "Training    ended; step 8000" in text
    assert "Checkpoint  step 8000, " in text
    assert "Restarts    4 (worker: 2, hang: 1, node_lost: 1); 1 of 3 used" in text
    assert "Nodes       2 of 2 in the last round; 0 spares; lost: vm/1" in text
    assert (
        "  2026-11-25 10:52:52   20.4 s  rank 0 on node 0 (vm) was killed by SIGKILL\n"
        "    detecting 0.7 ms, stopping 12 ms, waiting for nodes 86 ms, starting workers 53 ms,\n"
        "    importing and building 20.2 s, 1 step done again (34 ms)\n"
    ) in text
    assert "Goodput 63.7%" in text


def test_the_trace_has_what_the_format_documents(report: JobReport) -> None:
    trace = json.loads(trace_of(report))
    required = {
        "X": {"name", "cat", "pid", "tid", "ts", "dur"},
        "i": {"name", "cat", "pid", "tid", "ts", "s"},
        "C": {"name", "pid", "ts", "args"},
        "M": {"name", "pid", "args"},
    }
    events = trace["traceEvents"]
    for event in events:
        assert required[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "job digits-7b", 1: "node vm/0", 2: "node vm/1", 3: "node vm/2"}
    restarts = [event for event in events if event.get("cat") == "restart"]
    assert [event["name"] for event in restarts] == [
        *("restart: worker", "restart: worker", "restart: hang", "restart: node_lost"),
    ]
    assert sum(event.get("cat") == "failure" for event in events) == 5
    for event, one in zip(restarts, report.restarts, strict=True):
        assert event["dur"] == pytest.approx(one.seconds * 1e6, abs=1)
        assert event["args"]["importing and building"] == one.phases["importing and building"]
    steps = [e["args"]["step"] for e in events if e["ph"] == "C" and e["name"] == "step"]
    assert steps == sorted(steps)
    training = [e for e in events if e["name"] == "training" and e["pid"] == 1]
    assert sum(e["dur"] for e in training) / 1e6 == pytest.approx(277.9, abs=0.5)


WRONG: tuple[Any, ...] = (
    None,
    -1,
    10**18,
    1e300,
    "",
    "x",
    [],
    {},
    [1],
    {"kind": 3},
    True,
    "\ud800",
)


def changed(line: str, chance: random.Random) -> str:
    """Return a line with a value of another type somewhere, or a part of the line."""
    if chance.random() < 0.2:
        return line[: chance.randrange(len(line))]
    record = at = json.loads(line)
    while True:
        key = chance.choice(list(at))
        if not (isinstance(at[key], dict) and at[key] and chance.random() < 0.7):
            break
        at = at[key]
    at[key] = json.loads(json.dumps(chance.choice(WRONG)))
    return json.dumps(record) + "\n"


@pytest.mark.parametrize("seed", range(8))
def test_lines_that_a_broken_disk_or_a_bad_node_wrote(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for path in RECORDED.glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        bad = [changed(line, chance) if chance.random() < 0.1 else line for line in lines]
        (tmp_path / f"events-{path.name}").write_text("".join(bad))
    reading = Reading()
    report = read_report([str(tmp_path)], "digits-7b", reading)
    for show in (page_of, json_of):
        assert show(report, reading)
    assert text_of(report)
    assert trace_of(report)
    assert reading.torn > 0
