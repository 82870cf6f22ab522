"""The parts of restarts, by the clock of the node with the lowest rank that was in both rounds."""

from collections.abc import Sequence

import pytest
from ft_run.events.master import NodeDisconnected
from ft_run.events.workers import (
    HangDismissed,
    HangSuspected,
    RegroupBegun,
    RestartBegun,
    RoundEnded,
    RoundProgressed,
    RoundStarted,
    TrainingStarted,
    WorkerExited,
    WorkerFailed,
    WorkersStarted,
    WorkersStopped,
)
from ft_run.launcher.history.accounting import seconds_of
from ft_run.launcher.report.restarts import RestartParts, RestartTimes
from ft_run.rendezvous.protocol.failure import Failure, FailureKind, hung, node_lost
from ft_run.tests.harness.job_events import Job

KILLED = Failure(FailureKind.WORKER, 2, 0, 1, "b", 77, -9, 5)


@pytest.fixture
def job() -> Job:
    job = Job()
    job.starts("a/0", "b/0")
    job.round(0, "a/0", "b/0")
    job.now += 100.0
    return job


def parts(job: Job) -> list[RestartParts]:
    times, history = RestartTimes(), type(job.history)()
    for record in job.records:
        history.add(record)
        account = history.account(record["node"])
        times.add(record, seconds_of(record["time"]), history.run, account)
    return times.restarts


def sums(restarts: Sequence[RestartParts]) -> dict[str, float]:
    """Return the seconds of restarts by phase."""
    found: dict[str, float] = {}
    for one in restarts:
        for name, seconds in one.phases.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def of_job(job: Job) -> dict[str, float]:
    """Return the same of all restarts, as the table of the job has it."""
    history = type(job.history)()
    for record in job.records:
        history.add(record)
    phases = history.account("a/0").account().restart_phases
    return {phase.value: seconds for phase, seconds in phases.items()}


def stops(job: Job, node: str, rank: int, *, steps: int = 200) -> None:
    job.happens(node, WorkersStopped(0, rank, 2, "r", False))
    job.happens(node, 2.0, RoundEnded(0, rank, steps, False))


def starts(job: Job, node: str, rank: int, *, resumes_from: int) -> None:
    started = RoundStarted(1, rank, 2, 4, 1, "r", resumes_from, True)
    job.happens(node, 0.25, started, 0.5, WorkersStarted(1, rank, 0, (1, 2), 4, 2, "h", 1, None))


def test_a_worker_fails_and_its_steps_are_done_again(job: Job) -> None:
    job.happens("b/0", WorkerExited(0, 1, 2, 0, 77, -9, False), WorkerFailed(0, 1, KILLED))
    job.happens("b/0", 5.0, RoundEnded(0, 1, 200, False))
    stops(job, "a/0", 0)
    job.now += 0.75
    for rank, node in ((1, "b/0"), (0, "a/0")):
        job.happens(node, RestartBegun(1, rank, KILLED, "rule 1", False, 1, 3))
    starts(job, "b/0", 1, resumes_from=150)
    starts(job, "a/0", 0, resumes_from=150)
    job.happens("a/0", 8.0, RoundProgressed(1, 0, -1, 0.0, 0.0), TrainingStarted(1, 0, 151))
    (one,) = parts(job)
    assert (one.run, one.round, one.kind, one.rule) == (1, 1, "worker", "rule 1")
    assert one.cause == "rank 2 on node 1 (b) was killed by SIGKILL"
    assert one.detect_s == pytest.approx(5.0)  # of the other node, until it stops
    assert one.phases == pytest.approx(
        {
            "stopping": 2.0,
            "waiting for nodes": 0.75 + 0.25 + 0.5 + 0.25,
            "starting workers": 0.5,
            "importing and building": 8.0,
        }
    )
    assert one.down_s == pytest.approx(5.0 + 2.0 + 1.75 + 0.5 + 8.0)
    assert one.began_s == pytest.approx(one.at_s - 0.75 - 2.0 - 5.0)
    assert one.redo_steps == 50
    assert one.redo_s == pytest.approx(105.0 * 50 / 200)  # 200 steps in 105 s


def test_what_workers_do_until_the_first_step(job: Job) -> None:
    stops(job, "a/0", 0)
    job.happens("a/0", RestartBegun(1, 0, KILLED, "", False, 1, 3))
    starts(job, "a/0", 0, resumes_from=-1)
    job.happens("a/0", 8.0)
    record = dict(job.recorders["a/0"].record(RoundProgressed(1, 0, -1, 0.0, 0.0)))
    job.records.append(
        record | {"phases": {"importing and building": 5.0, "first step": 2.0, "evaluate": 1.0}}
    )
    job.happens("a/0", TrainingStarted(1, 0, 0), 5.0, RoundProgressed(1, 0, 9, 1.0, 0.0))
    (one,) = parts(job)
    assert list(one.phases) == [
        *("stopping", "waiting for nodes", "starting workers"),
        *("importing and building", "first step", "evaluate"),
    ]
    assert one.phases["importing and building"] == pytest.approx(5.0)
    assert (one.phases["first step"], one.phases["evaluate"]) == (2.0, 1.0)
    assert one.is_over
    assert sums([one]) == pytest.approx(of_job(job))


def test_a_restart_that_fails_before_its_first_step_ends_with_the_next_one(job: Job) -> None:
    stops(job, "a/0", 0)
    job.happens("a/0", RestartBegun(1, 0, KILLED, "", False, 1, 3))
    starts(job, "a/0", 0, resumes_from=-1)
    job.happens("a/0", 8.0, WorkersStopped(1, 0, 2, "r", False))
    job.happens("a/0", 3.0, RoundEnded(1, 0, -1, False))
    job.happens("a/0", 0.5, RestartBegun(2, 0, KILLED, "", False, 2, 3))
    first, second = parts(job)
    assert first.down_s is None
    assert first.phases["importing and building"] == pytest.approx(8.0)
    assert first.phases["stopping"] == pytest.approx(2.0)
    assert second.phases == pytest.approx({"stopping": 3.0, "waiting for nodes": 0.5})
    assert sums([first, second]) == pytest.approx(of_job(job))


def test_a_hang_before_the_first_step_that_is_none_is_a_part(job: Job) -> None:
    stops(job, "a/0", 0)
    job.happens("a/0", RestartBegun(1, 0, KILLED, "", False, 1, 3))
    starts(job, "a/0", 0, resumes_from=-1)
    job.happens("a/0", 8.0, HangSuspected(1, 0, (2,), 8.0), 3.0, HangDismissed(1, 0, "r"))
    job.happens("a/0", 1.0, TrainingStarted(1, 0, 0))
    (one,) = parts(job)
    assert one.phases["no progress"] == pytest.approx(3.0)
    assert one.phases["importing and building"] == pytest.approx(9.0)


def test_a_lost_node_is_detected_from_its_disconnection_on(job: Job) -> None:
    job.happens("a/0", NodeDisconnected("b/0"), 3.0)
    stops(job, "a/0", 0)
    job.happens("a/0", RestartBegun(1, 0, node_lost(1, "b", "r", "gone"), "", True, 0, 3))
    (one,) = parts(job)
    assert (one.kind, one.is_free) == ("node_lost", True)
    assert one.detect_s == pytest.approx(3.0)
    assert (one.phases, one.down_s) == ({"stopping": 2.0}, None)
    assert one.redo_steps is None


def test_a_hang_is_detected_from_the_last_step_on(job: Job) -> None:
    job.happens("b/0", HangSuspected(0, 1, (2,), 30.0), 4.0)
    stops(job, "a/0", 0)
    job.happens("a/0", RestartBegun(1, 0, hung(1, "b", "r", "no step"), "", False, 1, 3))
    (one,) = parts(job)
    assert one.detect_s == pytest.approx(34.0)


def test_the_node_with_the_lowest_rank_counts_in_any_order(job: Job) -> None:
    stops(job, "a/0", 0)
    stops(job, "b/0", 1)
    job.happens("a/0", RestartBegun(1, 0, KILLED, "", False, 1, 3))
    job.happens("b/0", 3.0, RestartBegun(1, 1, KILLED, "", False, 1, 3))
    starts(job, "a/0", 0, resumes_from=-1)
    starts(job, "b/0", 1, resumes_from=-1)
    assert parts(job)[0].phases["waiting for nodes"] == pytest.approx(2.0 + 3.0 + 0.25)


def test_a_regroup_has_no_failure(job: Job) -> None:
    stops(job, "a/0", 0)
    job.happens("a/0", RegroupBegun(1, 0, 3, "a node has joined"))
    starts(job, "a/0", 0, resumes_from=200)
    job.happens("a/0", 1.0, TrainingStarted(1, 0, 201))
    (one,) = parts(job)
    assert (one.kind, one.cause, one.detect_s) == ("regroup", "a node has joined", None)
    assert (one.phases["stopping"], one.phases["starting workers"]) == (2.0, 0.5)
    assert (one.is_over, one.redo_steps) == (True, 0)


def test_a_failure_that_is_reported_late_is_not_that_of_the_next_restart(job: Job) -> None:
    stops(job, "a/0", 0)
    job.happens("a/0", RestartBegun(1, 0, KILLED, "", False, 1, 3))
    starts(job, "a/0", 0, resumes_from=-1)
    job.happens("b/0", WorkerFailed(0, 1, KILLED), 50.0)  # its clock is late
    job.happens("a/0", WorkersStopped(1, 0, 2, "r", False), RoundEnded(1, 0, 9, False))
    job.happens("a/0", RestartBegun(2, 0, KILLED, "", False, 2, 3))
    assert parts(job)[1].detect_s is None
