"""The report of a failed job: what it says where the root cause is not certain."""

import json
import signal

from ft_run.launcher.reporting.failure_report import final_report
from ft_run.rendezvous.protocol.failure import Failure, hung, node_lost, preempted
from ft_run.rendezvous.protocol.messages import Outcome, Verdict
from ft_run.tests.harness.scene import worker_failure
from msgspec.structs import replace


def report(*failures: Failure) -> str:
    count = len(failures)
    verdict = Verdict(Outcome.WORKERS_FAILED, 1, "it failed", 0, 1, failures[0], failures, count)
    return final_report(verdict, "train.py")


def test_a_cause_among_others_that_look_the_same_is_in_doubt() -> None:
    told = report(worker_failure(1), worker_failure(0), worker_failure(2, after_stop=True))
    assert told.startswith("Root cause: rank 1 on node 1 (host-1) exited with 1\n")
    assert (
        "\n  note      : 1 other worker also exited with 1; the root cause is uncertain\n"
    ) in told
    three = report(worker_failure(1), worker_failure(0), worker_failure(2))
    assert ": 2 other workers also exited with 1; the root cause is uncertain\n" in three
    aborted = report(worker_failure(1), worker_failure(0, code=-signal.SIGABRT))
    assert ": 1 other worker also ended; the root cause is uncertain\n" in aborted


def test_a_cause_that_is_plain_is_not_in_doubt() -> None:
    alone = worker_failure(1)
    said = worker_failure(1, message="ValueError: loss is nan")
    reset = worker_failure(0, message="Connection reset by peer")
    for failures in ((alone,), (alone, reset), (said, worker_failure(0)), (said, reset)):
        assert "note" not in report(*failures)


STACK = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no\n'
RECORD = {"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": STACK}}}


def test_a_traceback_is_shown_once_and_what_stands_before_it_on_stderr() -> None:
    failure = worker_failure(1, message="ValueError: no", error_json=json.dumps(RECORD))
    for tail, shown in (
        ("", []),
        (STACK, []),
        ("a.cu:3: assertion failed\n" + STACK, ["  stderr    : a.cu:3: assertion failed"]),
        (STACK[30:], []),
    ):
        told = report(replace(failure, stderr_tail=tail))
        assert told.count("ValueError: no") == 2  # in the first line, and at the traceback's end
        assert [line for line in told.splitlines() if "stderr" in line] == shown


def test_a_node_that_is_gone_has_no_rank_process_or_time() -> None:
    told = report(preempted(2, "host-2", "default", "SIGTERM"))
    assert "  host      : host-2\n  node      : 2\n  reason    : left, SIGTERM\n" in told
    lost = report(node_lost(None, "host-2", "default", "its connection was closed"))
    assert "  node      : <N/A>\n  reason    : lost, its connection was closed\n" in lost
    for text in (told, lost):
        assert not any(word in text for word in ("1970", "rank", "pid", "-1"))


def test_numbers_of_another_node_are_not_believed() -> None:
    for time_s in (0, 2**40, 2**64 - 1):
        assert "  time      : <N/A>\n" in report(worker_failure(1, time_s=time_s))
    for error_json in ("[" * 100_000, "[]", "{}", '{"message": 3}', "\x1b"):
        told = report(worker_failure(1, error_json=error_json, message="ValueError: nan"))
        assert "exited with 1: ValueError: nan\n" in told


def test_a_message_of_spaces_is_none() -> None:
    assert report(worker_failure(1, message=" \n ")).startswith(
        "Root cause: rank 1 on node 1 (host-1) exited with 1\n"
    )


def test_a_hang_says_where_all_ranks_were() -> None:
    found = replace(
        hung(2, "host-2", "", "rank 5 on node 2 (host-2) hangs in read() at a.py:4"),
        stderr_tail="rank 5 on node 2 (host-2)\n  a.py:4 read\nranks 0-4\n  a.py:9 main",
    )
    told = report(found)
    assert told.startswith("Root cause: rank 5 on node 2 (host-2) hangs in read() at a.py:4\n")
    assert (
        "[0]:\n"
        "  reason    : rank 5 on node 2 (host-2) hangs in read() at a.py:4\n"
        "  stacks    : rank 5 on node 2 (host-2)\n"
        "                a.py:4 read\n"
        "              ranks 0-4\n"
        "                a.py:9 main\n"
        "====="
    ) in told
