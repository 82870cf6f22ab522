"""The record of a node from the answers of its workers."""

from ft_run.checks.merge import WorkerAnswer, merge
from ft_run.checks.records import Phase, Record

PEER = "small all-reduce: RuntimeError: Connection closed by peer [127.0.0.1]:4711"


def merged(*answers, phase=Phase.PAIR, workers=2):
    return merge("n0", phase, list(answers), workers)


def test_the_slowest_worker_speaks_for_the_node():
    record = merged(
        WorkerAnswer(0, metrics={"compute_tflops": 2.0, "latency_us": 30.0}),
        WorkerAnswer(1, metrics={"compute_tflops": 1.0, "latency_us": 20.0}),
    )
    assert record == Record("n0", Phase.PAIR, metrics={"compute_tflops": 1.0, "latency_us": 30.0})


def test_the_worker_that_lost_its_peer_is_not_the_reason():
    record = merged(WorkerAnswer(0, PEER), WorkerAnswer(1, "matrix product: InjectedError: broken"))
    assert record.failure == "local rank 1: matrix product: InjectedError: broken"


def test_a_rank_that_hangs_alone_is_the_reason_before_one_that_hangs_with_others():
    record = merged(
        WorkerAnswer(0, "no answer within 5 s (small all-reduce)", held_up=True),
        WorkerAnswer(1, "no answer within 5 s (opening the device)"),
    )
    assert record.failure == "local rank 1: no answer within 5 s (opening the device)"
    record = merged(
        WorkerAnswer(0, PEER), WorkerAnswer(1, "no answer within 5 s (x)", held_up=True)
    )
    assert record.failure == "local rank 1: no answer within 5 s (x)"


def test_a_rank_that_waited_in_vain_is_not_the_reason():
    waited = "connecting to the other workers: DistStoreError: Timed out after 43 seconds"
    record = merged(
        WorkerAnswer(0, waited), WorkerAnswer(1, "not finished (opening the device)", held_up=True)
    )
    assert record.failure == "local rank 1: not finished (opening the device)"


def test_where_there_is_one_worker_its_rank_says_nothing():
    assert merged(WorkerAnswer(0, "broken"), workers=1).failure == "broken"


def test_facts_are_of_the_node():
    record = merged(WorkerAnswer(0, "the disk is full", facts={"cpus": 2}), phase=Phase.FACTS)
    assert record.failure == "the disk is full"
    assert record.facts == {"cpus": 2}
