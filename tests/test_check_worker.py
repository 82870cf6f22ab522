"""What a check worker does without torch."""

import os

import pytest
from ft_run.checks.post import Post
from ft_run.checks.records import Level, Metrics, Order, Phase, order_to_json, record_from_json
from ft_run.checks.worker import CheckError, CheckWorker, interface_towards, plausible


def facts_order(number):
    return Order(number, Phase.FACTS, Level.LIGHT, 0, 1, "", 0, 10.0)


def test_a_post_survives_the_command_line():
    post = Post("n0", 1, 2, 0, "cpu", "/logs", None, ("/cpu", "/"), ("/memory",), "0.1")
    assert Post.from_json(post.to_json()) == post


@pytest.fixture
def answers():
    """Have a worker carry out orders until end-of-file; return its answers, split in three."""

    def run(post, *orders):
        orders_from, orders_to = os.pipe()
        answers_from, answers_to = os.pipe()
        os.write(orders_to, "".join(order_to_json(order) + "\n" for order in orders).encode())
        os.close(orders_to)
        CheckWorker(post, orders_from, answers_to).run()
        os.close(answers_to)
        with os.fdopen(answers_from, encoding="utf-8") as file:
            lines = [line.split(" ", 2) for line in file]
        return [line for line in lines if line[0] == "answer"]

    return run


def test_facts_are_answered_and_end_of_file_ends_it(answers, tmp_path):
    post = Post("n0", 0, 1, 0, "cpu", log_dir=str(tmp_path))
    first, second = answers(post, facts_order(7), facts_order(8))
    assert (first[1], second[1]) == ("7", "8")
    record = record_from_json(second[2])
    assert (record.node, record.phase, record.failure) == ("n0", Phase.FACTS, "")
    assert record.facts["local_world_size"] == 1


def test_a_fact_that_rules_the_node_out_is_the_failure(answers):
    # The file system of processes has no room.
    (answer,) = answers(Post("n0", 0, 1, 0, "cpu", log_dir="/proc"), facts_order(1))
    assert record_from_json(answer[2]).failure.startswith("the disk of the log folder is full")


def test_the_interface_towards_an_address():
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("127.1.2.3") == "lo"


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_metric_that_no_measurement_can_give(value):
    assert plausible(Metrics(compute_tflops=1.0)) == Metrics(compute_tflops=1.0)
    with pytest.raises(CheckError, match="latency_us was measured as"):
        plausible(Metrics(latency_us=value))
