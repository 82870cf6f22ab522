"""The questions on call, answered from the events of a job."""

import json

import pytest
from ft_run.events.checkpoints import CheckpointFailed, CheckpointWritten
from ft_run.events.master import NodeExcluded, NodeJoined, NodeLost
from ft_run.events.node import JobEnded, NodeWaits
from ft_run.events.record import Record
from ft_run.events.workers import (
    GpuXid,
    RestartBegun,
    RoundEnded,
    RoundProgressed,
    RoundStarted,
    WorkerFailed,
)
from ft_run.launcher.report.text import _answers
from ft_run.rendezvous.protocol.failure import Failure, FailureKind, node_lost
from ft_run.rendezvous.protocol.messages import Outcome, Verdict, Waiting
from ft_run.tests.harness.job_events import T0, Job
from msgspec.structs import replace

KILLED = Failure(FailureKind.WORKER, 3, 1, 1, "b", 77, -9, 5, stderr_tail="one\ntwo\n")
LOST = node_lost(1, "b", "r", "its connection was closed")


@pytest.fixture
def job() -> Job:
    job = Job()
    job.starts("a/0", "b/0")
    return job


def test_before_the_first_round(job: Job) -> None:
    job.happens("a/0", 1.0, NodeWaits(Waiting(2, 3, 4, ("c",), 60.0, False), False))
    found = job.summary
    assert (found.job, found.started_at_s, found.at_s, found.exit_code) == ("job", T0, T0 + 1, None)
    assert found.training.phase == "waiting for nodes"
    assert not found.training.is_training
    assert (found.nodes.missing, found.nodes.min_nodes, found.nodes.max_nodes) == (("c",), 3, 4)
    assert found.nodes.spares is None


def test_it_is_training(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    assert job.summary.training.is_training
    job.minutes("a/0", 3, rate=2.0)
    training = job.summary.training
    assert training.is_training
    assert (training.step, training.steps_per_s) == (360, 2.0)
    assert training.step_at_s == pytest.approx(job.now - 0.25)
    assert training.slowdown is None  # too few minutes
    job.happens("b/0", RoundProgressed(0, 1, 9, 9.0, 0.1))  # of the node with a higher rank
    assert job.summary.training == training


def test_no_step_for_a_long_time(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.minutes("a/0", 1, rate=2.0)
    job.happens("a/0", 60.0, RoundProgressed(0, 0, 121, 2.0, 59.5))
    training = job.summary.training
    assert not training.is_training
    assert training.steps_per_s == 0.0
    assert training.step_at_s == pytest.approx(job.now - 59.5)


def test_it_is_slower_than_in_its_best_hour(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.minutes("a/0", 60, rate=1.0)
    job.minutes("a/0", 61, rate=2.0)
    job.minutes("a/0", 20, rate=0.5)
    training = job.summary.training
    assert (training.best_hour_steps_per_s, training.slowdown) == (2.0, 4.0)


def test_reports_for_scrapes_do_not_make_an_hour_shorter(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.minutes("a/0", 60, rate=1.0)
    for _ in range(60):
        job.happens("a/0", 5.0, RoundProgressed(0, 0, 10_000, 2.0, 0.25))
    job.minutes("a/0", 55, rate=1.0)
    assert job.summary.training.best_hour_steps_per_s == 1.0


def test_the_share_of_training_that_waits_for_data(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    for training_s, waits in ((50.0, [5.0, 0.0]), (100.0, [20.0, 30.0]), (101.0, [31.0, 31.0])):
        job.minutes("a/0", 1, rate=2.0)
        record = job.records.pop()
        more = {"phases": {"training": training_s}, "data_wait_s": waits}
        job.history.add({**record, **more})  # the last report is too short to tell
    assert job.summary.training.data_wait == pytest.approx(25.0 / 50.0)
    job.round(1, "a/0", "b/0")
    assert job.summary.training.data_wait is None


def test_rates_of_other_numbers_of_workers_are_not_compared(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.minutes("a/0", 20, rate=4.0)
    job.round(1, "a/0")
    job.minutes("a/0", 20, rate=2.0)
    assert job.summary.training.slowdown == 1.0


def test_checkpoints(job: Job) -> None:
    assert job.summary.saves.checkpoint is None
    job.happens("b/0", CheckpointFailed(1, "disk full"))
    job.happens("b/0", 5.0, CheckpointWritten(20, "/c/20", 1000, 1.5, False))
    written_at_s = job.now
    job.happens("b/0", 5.0, CheckpointFailed(30, "disk full"), CheckpointFailed(40, "no space"))
    saves = job.summary.saves
    assert saves.checkpoint is not None
    assert (saves.checkpoint.step, saves.checkpoint.bytes) == (20, 1000)
    assert saves.checkpoint.at_s == written_at_s
    assert (saves.failed, saves.failed_in_all, saves.reason) == (2, 3, "no space")


def test_snapshots_and_their_replicas(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.happens("a/0", 60.0, RoundProgressed(0, 0, 100, 1.0, 0.1, 90, 80))
    seen_at_s = job.now
    job.happens("a/0", 60.0, RoundProgressed(0, 0, 160, 1.0, 0.1, 90, 90))
    saves = job.summary.saves
    assert (saves.snapshot_step, saves.snapshot_at_s, saves.replica_lag) == (90, seen_at_s, 0)


def restarts(job: Job, number: int, cause: Failure, used: int) -> None:
    for rank, node in enumerate(("a/0", "b/0")):
        job.happens(node, 0.1, RestartBegun(number, rank, cause, "rule 1", False, used, 3))


def test_each_restart_counts_once_with_its_cause(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.happens("b/0", 1.0, WorkerFailed(0, 1, KILLED))
    (failure,) = job.summary.restarts.failures
    assert (failure.rank, failure.host, failure.round, failure.lines) == (3, "b", 0, ("one", "two"))
    restarts(job, 1, KILLED, 1)
    job.round(1, "a/0", "b/0")
    restarts(job, 2, LOST, 2)
    found = job.summary.restarts
    assert (found.count, found.used, found.limit) == (2, 2, 3)
    assert found.by_kind == {"worker": 1, "node_lost": 1}
    assert [(one.round, one.rule, one.cause.kind) for one in found.last] == [
        (1, "rule 1", "worker"),
        (2, "rule 1", "node_lost"),
    ]
    assert found.last[0].cause.summary == "rank 3 on node 1 (b) was killed by SIGKILL"
    assert not found.failures


def test_the_phase_is_that_of_rank_0_after_it_has_moved(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.happens("b/0", 1.0, RestartBegun(1, 0, LOST, "", False, 1, 3))
    job.round(1, "b/0")
    job.happens("b/0", 1.0, RoundEnded(1, 0, 17, True))
    assert (job.summary.training.phase, job.summary.training.step) == ("stopping", 17)


def test_nodes_by_the_events_of_the_master(job: Job) -> None:
    job.starts("d/0")
    for node in ("a/0", "b/0", "c/0", "d/0"):
        job.happens("a/0", NodeJoined(node, "10.0.0.1"))
    job.round(0, "a/0", "b/0")
    assert job.summary.nodes.spares == 2
    job.happens("a/0", NodeLost("b/0", "gone"), NodeExcluded("c/0"))
    job.round(1, "a/0", "d/0")
    nodes = job.summary.nodes
    assert (nodes.connected, nodes.spares) == (("a/0", "d/0"), 0)
    assert (nodes.lost, nodes.excluded) == (("b/0",), ("c/0",))
    job.happens("a/0", NodeJoined("b/0", "10.0.0.1"))
    assert not job.summary.nodes.lost
    assert job.summary.nodes.spares == 1


def test_the_gpus_that_have_reported_errors(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.happens("b/0", GpuXid(3, "GPU-d", 79), GpuXid(3, "GPU-d", 79), GpuXid(0, "GPU-a", 48))
    restarts(job, 1, LOST, 1)
    summary = job.summary
    assert summary.nodes.xids == ("b/0 GPU 3 Xid 79", "b/0 GPU 0 Xid 48")
    assert dict(_answers(summary))["GPU errors"] == ", ".join(summary.nodes.xids)


def test_a_lost_node_without_the_events_of_the_master(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    restarts(job, 1, LOST, 1)
    assert job.summary.nodes.lost == ("b",)
    job.starts("b/0")
    assert not job.summary.nodes.lost


VERDICT = Verdict(Outcome.WORKERS_FAILED, 1, "rank 3 failed", 0, 1, KILLED, (KILLED,), 1)


def test_the_end_and_another_start(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.minutes("a/0", 1, rate=1.0)
    job.happens("b/0", WorkerFailed(0, 1, KILLED), JobEnded(VERDICT))
    job.happens("a/0", JobEnded(VERDICT))
    found = job.summary
    assert (found.exit_code, found.ended, found.runs) == (1, "rank 3 failed", 1)
    assert not found.training.is_training
    assert [one.rank for one in found.restarts.failures] == [3]
    job.now += 100.0
    job.starts("a/0", "c/0", attempt=1)
    assert job.summary.exit_code is None
    job.round(0, "a/0", "c/0")
    assert (job.summary.runs, job.summary.attempt) == (2, 1)
    assert job.summary.training.is_training


def test_another_start_without_a_number_of_the_scheduler(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.starts("b/0")  # only this agent is new
    restarts(job, 1, KILLED, 1)
    job.round(1, "a/0", "b/0")
    assert job.summary.runs == 1
    job.starts("a/0", "b/0")
    job.round(0, "a/0", "b/0")
    assert job.summary.runs == 2
    job.now += 100.0
    job.starts("c/0", "d/0")
    job.round(0, "c/0", "d/0")
    assert job.summary.runs == 3


def test_clocks_that_differ_make_no_start() -> None:
    job = Job()
    job.starts("a/0")
    job.happens("a/0", RoundStarted(0, 0, 2, 2, 0, "r"))
    job.now += 2.0
    job.starts("b/0")
    job.happens("b/0", RoundStarted(0, 1, 2, 2, 0, "r"))
    assert job.summary.runs == 1


def test_the_lines_of_a_failure_are_its_traceback_if_standard_error_was_not_captured(
    job: Job,
) -> None:
    stack = "Traceback (most recent call last):\n  File x\nValueError: no data\n"
    error = {"message": {"message": "no data", "extraInfo": {"py_callstack": stack}}}
    raised = replace(KILLED, exit_code=1, stderr_tail="", error_json=json.dumps(error))
    job.round(0, "a/0", "b/0")
    job.happens("b/0", WorkerFailed(0, 1, raised))
    (failure,) = job.summary.restarts.failures
    assert failure.lines == tuple(stack.splitlines())


def test_a_failure_of_a_kind_that_a_later_release_added(job: Job) -> None:
    job.round(0, "a/0", "b/0")
    job.recorders["a/0"].event(WorkerFailed(0, 0, KILLED))
    record: Record = job.recorders["a/0"].record(WorkerFailed(0, 0, KILLED))
    later = {**record, "failure": {**record["failure"], "kind": "meteor", "crater": 5}}
    job.history.add(later)
    assert job.summary.restarts.failures[-1].kind == "meteor"
