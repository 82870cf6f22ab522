"""What nodes say of themselves, compared: which nodes are told that they differ, and from which."""

import time

import pytest
from ft_run.checks.differences import COMPARED_FACTS, different_facts
from ft_run.checks.records import Phase, Record
from ft_run.checks.results import Answered, Results, Step
from ft_run.checks.verdict import verdict
from ft_run.checks.worker_config import NOT_CARRIED_OUT


def answered(facts):
    """A step in which nodes have said of themselves what ``facts`` holds by node."""
    step = Step(Phase.FACTS, tuple((node,) for node in facts))
    records = {node: Record(node, Phase.FACTS, facts=mine) for node, mine in facts.items()}
    return Answered(step, records)


def warnings(*steps):
    """What each node is told, of those that are told anything."""
    nodes = tuple(dict.fromkeys(node for facts in steps for node in facts))
    found = verdict(Results(nodes, steps=tuple(map(answered, steps))))
    return {node.node: node.warnings for node in found.nodes if node.warnings}


def torches(*versions):
    return {f"n{i}": {"torch": version} for i, version in enumerate(versions)}


@pytest.mark.parametrize("name", COMPARED_FACTS)
def test_the_node_that_differs_from_most_is_told(name):
    facts = {"a": {name: "1"}, "b": {name: "2"}, "c": {name: "1"}}
    assert warnings(facts) == {"b": (f"{name} is 2 here and 1 on most other nodes",)}
    assert warnings({node: {name: "1"} for node in "abc"}) == {}


def test_nodes_whose_facts_are_unknown_are_not_compared():
    facts = {"a": {"ft_run": "0.1.0", "python": "3.11"}, "b": {}, "c": {}}
    assert list(different_facts(facts)) == []


def test_other_facts_may_differ():
    assert warnings({"a": {"host": "a", "cpus": 2}, "b": {"host": "b", "cpus": 4}}) == {}


def test_two_that_differ_are_both_told():
    assert warnings(torches("2.5", "2.6")) == {
        "n0": ("torch is 2.5 here and 2.6 on n1",),
        "n1": ("torch is 2.6 here and 2.5 on n0",),
    }


def test_halves_are_both_told():
    found = warnings(torches("2.5", "2.6", "2.6", "2.5"))
    assert found["n0"] == found["n3"] == ("torch is 2.5 here and 2.6 on n1",)
    assert found["n1"] == found["n2"] == ("torch is 2.6 here and 2.5 on n0",)


def test_the_smaller_groups_are_told_where_there_is_no_majority():
    assert warnings(torches("2.5", "2.6", "2.6", "2.7")) == {
        "n0": ("torch is 2.5 here and 2.6 on n1",),
        "n3": ("torch is 2.7 here and 2.6 on n1",),
    }


def test_a_fact_that_is_missing_differs():
    has, lacks = {"nccl": "2.27", "torch": "2.6"}, {"torch": "2.6"}
    assert warnings({"a": has, "b": has, "c": lacks}) == {
        "c": ("nccl is missing here and 2.27 on most other nodes",)
    }
    assert warnings({"a": has, "b": lacks}) == {
        "a": ("nccl is 2.27 here and missing on b",),
        "b": ("nccl is missing here and 2.27 on a",),
    }


def test_a_node_that_has_said_nothing_is_not_compared():
    facts = torches("2.5", "2.5")
    silent = Record("n2", Phase.FACTS, failure=NOT_CARRIED_OUT)
    step = answered(facts)
    with_silent = Answered(
        Step(Phase.FACTS, (("n0",), ("n1",), ("n2",))), {**step.records, "n2": silent}
    )
    found = verdict(Results(("n0", "n1", "n2", "n3"), frozenset({"n3"}), (with_silent,)))
    assert [node.warnings for node in found.nodes] == [()] * 4


def test_warnings_come_after_the_differences():
    facts = torches("2.5", "2.5", "2.6")
    facts["n2"]["warnings"] = "GPU 0 is throttled by heat"
    assert warnings(facts) == {
        "n2": ("torch is 2.6 here and 2.5 on most other nodes", "GPU 0 is throttled by heat")
    }


def clocks(*offsets):
    now = time.time()
    return {f"n{i}": {"unix_time_s": now + offset} for i, offset in enumerate(offsets)}


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ((0, 0.5, 9), {}),
        ((0, 0, 95), {"n2": "95 s ahead of"}),
        ((-95, 0, 0), {"n0": "95 s behind"}),
        ((0, -3600, 4, 2), {"n1": "3602 s behind"}),
        ((0, 95), {"n0": "95 s behind", "n1": "95 s ahead of"}),
        (
            (0, 95, 0, 95),
            dict.fromkeys(("n0", "n2"), "95 s behind")
            | dict.fromkeys(("n1", "n3"), "95 s ahead of"),
        ),
        ((0,), {}),
    ],
)
def test_a_clock_that_is_far_from_the_others(offsets, told):
    words = {node: (f"its clock is {what} the others'",) for node, what in told.items()}
    assert warnings(clocks(*offsets)) == words


def test_only_clocks_of_one_moment_are_compared():
    first, second = clocks(0, 0), {"n2": {"unix_time_s": time.time() + 600}}
    assert warnings(first, second) == {}
    assert warnings(first | second) != {}
