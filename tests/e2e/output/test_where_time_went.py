"""A scripted job: what is reported of its time is what the script itself measures.

Status, metrics, report and closing table are compared with each other and with the script.
"""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.launcher.history.accounting import seconds_of
from ft_run.tests.e2e.output.test_metrics import metrics_of, scraped, until

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

TOLERANCE_S = 0.2
BUILDING = "importing and building"

# Trains and crashes; goes back by 40 steps, trains, evaluates and hangs; goes back again, trains,
# and exits slowly. It records when it does what.
SCRIPT = """
import atexit, os, sys, time
from ft_run.training import activity, progress
folder, attempt = sys.argv[1], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
record = open(f"{folder}/{attempt}", "w", buffering=1)
def at(what): print(what, time.time(), file=record)
def train(first, last):
    for step in range(first, last):
        time.sleep(0.05)
        progress(step + 1)
        if step == first:
            at("training")
def evaluate(seconds):
    at("evaluate")
    with activity("evaluate"):
        time.sleep(seconds)
    at("training")
def exits():
    time.sleep(0.7)
    at("end")
atexit.register(exits)
at("importing and building")
time.sleep(0.6)
if attempt == 0:
    train(0, 100)
    at("end")
    os._exit(3)
if attempt == 1:
    train(60, 100)
    evaluate(1.0)
    train(100, 110)
    time.sleep(0.5)
    evaluate(0.7)
    at("end")
    time.sleep(1000)
train(100, 130)
while not os.path.exists(f"{folder}/gate"):
    time.sleep(0.05)
    progress(200)
at("stopping")
"""


def recorded(path: Path) -> list[tuple[str, float]]:
    """Return what the script did, and when it began to."""
    lines = [line.rpartition(" ") for line in path.read_text().splitlines()]
    return [(what, float(at)) for what, _, at in lines]


def spent(attempts: list[list[tuple[str, float]]]) -> dict[str, float]:
    """Return the seconds by what the script did."""
    found: dict[str, float] = {}
    for attempt in attempts:
        for (what, since), (_, until_s) in pairwise(attempt):
            found[what] = found.get(what, 0.0) + until_s - since
    return found


@pytest.mark.slow
def test_all_that_is_reported_agrees_with_the_script(ft: "Launcher") -> None:
    events, folder = ft.folder / "e.jsonl", ft.folder / "record"
    folder.mkdir()
    job = ft.start(
        *("--standalone", "--max-restarts", 2, "--hang-timeout", 2, "--rdzv-id", ft.mark),
        *("--events", events, "--metrics", 0, ft.script(SCRIPT), folder),
    )
    url = metrics_of(job)
    until(ft, url, "ftrun_step", 200)
    report = json.loads(ft.run("report", events, "--json").stdout)
    sampled, now_s = scraped(url), time.time()
    status = json.loads(ft.run("status", ft.mark, "--json").stdout)
    time_of, failures = report["time"], {"worker": 1, "hang": 1}
    # The job goes on between the report and the scrape; all that is over is the same.
    phases = of(sampled, "ftrun_phase_seconds_total")
    assert phases.pop("training") >= time_of["phases"].pop("training")
    assert phases == pytest.approx(time_of["phases"], abs=TOLERANCE_S)
    assert of(sampled, "ftrun_lost_seconds_total") == pytest.approx(
        time_of["lost"], abs=TOLERANCE_S
    )
    assert of(sampled, "ftrun_restarts_total") == time_of["restarts"] == failures
    summary = status["summary"]
    causes = [
        (found["by_kind"], found["used"], *(one["cause"]["summary"] for one in found["last"]))
        for found in (summary["restarts"], report["summary"]["restarts"])
    ]
    assert causes[0] == causes[1]
    assert causes[0][:2] == (failures, 2)
    assert [restart["redo_steps"] for restart in report["restarts"]] == [40, 10]
    assert summary["training"]["phase"] == report["summary"]["training"]["phase"] == "training"
    (worker,) = status["nodes"][0]["workers"]
    assert worker["steps"] == sampled["ftrun_step"] == 200
    assert sampled["ftrun_last_step_timestamp_seconds"] == pytest.approx(now_s, abs=TOLERANCE_S)
    (folder / "gate").touch()
    assert job.wait() == 0, job.stderr
    assert_table(events, [recorded(folder / str(attempt)) for attempt in range(3)])
    over = json.loads(ft.run("report", events, "--json").stdout)["time"]
    shown = accounted(events)
    # The report has the times of the events, the agent its own clock, which it reads before.
    assert over["phases"] == pytest.approx(shown["phases"], abs=TOLERANCE_S)
    assert over["lost"] == pytest.approx(shown["lost"], abs=TOLERANCE_S)


def records_of(events: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    return [json.loads(line) for line in events.read_text().splitlines()]


def accounted(events: Path) -> dict[str, Any]:
    """Return the record with the numbers of the closing table."""
    (found,) = (one for one in records_of(events) if one["name"] == "time.accounted")
    return found


def assert_table(events: Path, attempts: list[list[tuple[str, float]]]) -> None:
    """Compare the closing table with what the script has recorded."""
    records, found = records_of(events), accounted(events)
    suspected = next(record for record in records if record["name"] == "hang.suspected")
    stopped = [record for record in records if record["name"] == "round.ended"]
    hung_s = attempts[1].pop()[1]
    attempts[1].append(("end", seconds_of(suspected["time"])))
    expected = spent(attempts)
    expected["no progress"] = seconds_of(stopped[1]["time"]) - attempts[1][-1][1]
    # Between the attempts, and before and after them, ft-run works.
    ends = [attempt[-1][1] for attempt in attempts]
    began_s = seconds_of(found["time"]) - found["uptime_s"]
    first = attempts[0][0][1] - began_s
    between = attempts[1][0][1] - ends[0] + attempts[2][0][1] - seconds_of(stopped[1]["time"])
    phases = found["phases"]
    assert {name: phases[name] for name in expected if name != BUILDING} == pytest.approx(
        {name: seconds for name, seconds in expected.items() if name != BUILDING}, abs=TOLERANCE_S
    )
    of_ft_run = found["seconds"] - sum(phases[name] for name in expected if name != BUILDING)
    last = seconds_of(found["time"]) - ends[2]
    assert of_ft_run == pytest.approx(expected[BUILDING] + first + between + last, abs=TOLERANCE_S)
    # 40 of 100 steps; then 10 steps, and the unfinished one, without its activity.
    steps = attempts[0][2][1] - attempts[0][1][1]
    after = dict(attempts[1])
    assert found["lost"]["worker"] == pytest.approx(steps * 40 / 99, abs=TOLERANCE_S)
    assert hung_s > after["evaluate"]
    lost_s = expected["training"] - steps - (attempts[2][-2][1] - attempts[2][1][1])
    lost_s -= attempts[1][2][1] - attempts[1][1][1]  # before step 100
    assert found["lost"]["hang"] == pytest.approx(lost_s, abs=TOLERANCE_S)
    kept_s = expected["training"] - found["lost"]["hang"] - found["lost"]["worker"]
    assert found["goodput"] == pytest.approx(kept_s / found["seconds"], abs=0.01)


def of(samples: dict[str, float], name: str) -> dict[str, float]:
    """Return the samples of a metric that are not 0, by their label."""
    found = {key.split('"')[1]: value for key, value in samples.items() if key.startswith(name)}
    return {label: value for label, value in found.items() if value}
