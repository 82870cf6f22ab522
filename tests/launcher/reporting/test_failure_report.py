"""The report of a failed job: what it says where the root cause is not certain."""

from ft_run.launcher.reporting.failure_report import final_report
from ft_run.rendezvous.protocol.failure import Failure
from ft_run.rendezvous.protocol.messages import Outcome, Verdict
from ft_run.tests.harness.scene import worker_failure


def report(*failures: Failure) -> str:
    count = len(failures)
    verdict = Verdict(Outcome.WORKERS_FAILED, 1, "it failed", 0, 1, failures[0], failures, count)
    return final_report(verdict, "train.py")


def test_a_cause_among_others_that_look_the_same_is_in_doubt() -> None:
    told = report(worker_failure(1), worker_failure(0), worker_failure(2, after_stop=True))
    assert told.startswith("Root cause: rank 1 on node 1 (host-1) exited with 1\n")
    assert (
        "\n  note      : 1 more ended like this and nobody said why, so that another may have been"
        " first; @record or --tee 2 would tell\n"
    ) in told


def test_a_cause_that_is_plain_is_not_in_doubt() -> None:
    alone = worker_failure(1)
    said = worker_failure(1, message="ValueError: loss is nan")
    reset = worker_failure(0, message="Connection reset by peer")
    for failures in ((alone,), (alone, reset), (said, worker_failure(0)), (said, reset)):
        assert "note" not in report(*failures)
