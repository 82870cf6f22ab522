"""What a node did when: its own phases, and what its workers report."""

from typing import Any

from ft_run.events.node import MasterConnected
from ft_run.events.workers import RoundEnded, RoundProgressed, RoundStarted, TrainingStarted
from ft_run.events.workers import WorkersStarted as Started
from ft_run.launcher.history.accounting import Accounting, seconds_of
from ft_run.launcher.report.lanes import GONE, Lane, PhaseNames
from ft_run.tests.harness.job_events import T0, Job


def reports(job: Job, **phases: float) -> None:
    """The workers report what they have done in this round."""
    record = dict(job.recorders["a/0"].record(RoundProgressed(0, 0, 1, 1.0, 0.1)))
    named: dict[str, Any] = {name.replace("_", " "): seconds for name, seconds in phases.items()}
    job.records.append(record | {"phases": named})


def lane_of(job: Job) -> list[tuple[float, str]]:
    """Return when each phase began."""
    names, accounting = PhaseNames(), Accounting()
    lane = Lane("a/0", names)
    for record in job.records:
        accounting.add(record)
        lane.add(record, seconds_of(record["time"]), 1, accounting)
    lane.end()
    known = list(names)
    return [
        (round(at_s - T0, 3), known[phase] if phase != GONE else "")
        for at_s, phase in zip(lane.starts_s, lane.phases, strict=True)
    ]


def trains(job: Job) -> None:
    job.happens("a/0", RoundStarted(0, 0, 1, 1, 0, "r", -1, True), 1.0)
    job.happens("a/0", Started(0, 0, 0, (1,), 1, 1, "a", 1, None), 10.0)
    reports(job, importing_and_building=6.0, joining=1.0, restoring=0.0, first_step=3.0)
    job.happens("a/0", TrainingStarted(0, 0, 1))


STARTUP = [
    (0.0, "starting workers"),
    (1.0, "importing and building"),
    (7.0, "joining"),
    (8.0, "first step"),
    (11.0, "training"),
]


def test_what_workers_do_until_the_first_step_is_shown_in_its_order() -> None:
    job = Job()
    job.starts("a/0")
    trains(job)
    job.happens("a/0", 5.0, RoundEnded(0, 0, 5, True))
    assert lane_of(job) == [*STARTUP, (16.0, "")]


def test_what_takes_most_of_the_time_between_two_reports_is_shown() -> None:
    job = Job()
    job.starts("a/0")
    trains(job)
    startup = {"importing_and_building": 6.0, "joining": 1.0, "first_step": 3.0}
    for training_s, evaluate_s in ((60, 0), (60, 60), (70, 110), (129, 111)):
        job.now += 60.0
        reports(job, **startup, training=training_s, evaluate=evaluate_s)
    assert lane_of(job)[4:-1] == [(11.0, "training"), (71.0, "evaluate"), (191.0, "training")]


def test_another_process_of_the_node() -> None:
    job = Job()
    job.starts("a/0")
    job.now += 5.0
    job.happens("a/0", RoundStarted(0, 0, 1, 1, 0, "r", -1, True), 10.0)
    job.starts("a/0")
    job.happens("a/0", 1.0, MasterConnected(is_again=False), 1.0)
    job.starts("a/0")
    job.happens("a/0", 1.0, MasterConnected(is_again=False))
    assert lane_of(job) == [
        (0.0, "waiting for nodes"),
        (5.0, ""),
        (15.0, "waiting for nodes"),
        (16.0, ""),
        (17.0, "waiting for nodes"),
        (18.0, ""),
    ]


def test_more_activities_than_a_lane_has_numbers_for() -> None:
    names = PhaseNames()
    numbers = [names.number(f"activity {number}") for number in range(100)]
    assert max(numbers) < GONE
    assert numbers[-1] == numbers[-2] == names.number("other activities")
    assert names.number("training") < numbers[0]
