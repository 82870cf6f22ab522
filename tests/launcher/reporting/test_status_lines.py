"""The lines of ``ft-run status`` that answer what the person on call asks."""

from typing import Any

import pytest
from ft_run.launcher.reporting.status_answer import status_dict
from ft_run.launcher.reporting.status_lines import status_lines
from ft_run.rendezvous.protocol.status import NodeStatus, StatusReply
from ft_run.rendezvous.protocol.steps import RankSteps


def node(rank: int, *workers: RankSteps, attached: bool = True) -> NodeStatus:
    phase = "running" if rank >= 0 else "ready"
    return NodeStatus(
        f"h{rank}/0", f"h{rank}", "10.0.0.1", "r", phase, rank, rank, 1, attached, workers
    )


def status(*nodes: NodeStatus, **more: Any) -> dict[str, Any]:
    """Return a running job of two nodes; ``more`` has parts of the summary, and other fields."""
    parts = ("training", "saves", "restarts", "nodes")
    reply = StatusReply("j", "running", 3, 1, 2, 2, 2, 2, 100.0, 10.0, nodes)
    summary = {name: more.pop(name) for name in parts if name in more}
    return status_dict(reply) | {"time_s": 1000.0, "summary": summary} | more


def line(start: str, found: dict[str, Any]) -> str:
    """Return the only line that begins so; empty: there is none."""
    lines = [line for line in status_lines(found) if line.startswith(start)]
    assert len(lines) <= 1
    return next(iter(lines), "")


def test_a_job_without_a_summary_has_its_two_lines() -> None:
    assert status_lines(status()) == [
        "job j · running",
        "round 3 up 0:00:10 · nodes 2 of 2 · restarts 1/2 · master up 0:01:40",
    ]


def test_whether_it_trains() -> None:
    slow, fast = RankSteps(0, 70, 2.0, 0.5), RankSteps(1, 71, 2.0, 0.25)
    assert line("training", status(node(0, slow), node(1, fast))) == (
        "training: step 71, 0.2 s ago · 2 steps/s"
    )
    late = RankSteps(0, 70, 2.0, 75.0)
    assert line("training", status(node(0, late))) == "training: no step for 0:01:15, step 70"
    assert "(--watch-workers)" in line("training", status(node(0)))
    assert line("training", status(node(0), phase="waiting for nodes")) == ""


@pytest.mark.parametrize(
    ("best", "wait", "shown"),
    [
        (2.1, None, "2 steps/s"),
        (3.0, None, "2 steps/s, 3 in the best hour"),
        (3.0, 0.41, "2 steps/s, 3 in the best hour · waits for data 41% of the time"),
    ],
)
def test_whether_it_is_slower_and_whether_it_is_the_data(
    best: float, wait: float | None, shown: str
) -> None:
    training = {"best_hour_steps_per_s": best, "data_wait": wait}
    found = status(node(0, RankSteps(0, 7, 2.0, 0.0)), training=training)
    assert line("training", found) == f"training: step 7, 0.0 s ago · {shown}"


def test_how_much_would_be_lost() -> None:
    saves: dict[str, Any] = {"snapshot_step": 90, "snapshot_at_s": 979.0, "replica_lag": 2}
    saves |= {"failed": 3, "reason": "disk full"}
    found = status(checkpoint_step=80, checkpoint_age_s=192.6, saves=saves)
    assert line("last checkpoint", found) == (
        "last checkpoint: step 80, 0:03:12 ago · snapshot: step 90, reported 0:00:21 ago"
        " · replica 2 steps behind · 3 failed since: disk full"
    )
    of_a_lost_node = status(saves={"checkpoint": {"step": 8, "at_s": 940.0}})
    assert line("last checkpoint", of_a_lost_node) == "last checkpoint: step 8, 0:01:00 ago"
    assert line("snapshot", status(saves={"snapshot_step": 9})) == "snapshot: step 9"


def test_how_often_it_was_restarted_and_why() -> None:
    last = {"at_s": 940.0, "cause": {"summary": "rank 0 exited with 1"}}
    restarts = {"count": 3, "by_kind": {"worker": 2, "node_lost": 1}, "last": [last]}
    found = status(restarts=restarts, last_stop="rank 0 exited with 1")
    assert line("3 restarts", found) == (
        "3 restarts (worker: 2, node_lost: 1) · last 0:01:00 ago: rank 0 exited with 1"
    )
    assert line("last stop", found) == ""  # that was it
    assert line("last stop", found | {"last_stop": "scaled up"}) == "last stop: scaled up"


def test_which_nodes_are_missing_and_how_many_spares_are_left() -> None:
    lost = [f"n{number}/0" for number in range(8)]
    nodes = {"missing": ["rank 1"], "lost": lost, "excluded": ["bad/0"]}
    found = status(node(0), node(1, attached=False), node(-1), nodes=nodes)
    assert line("nodes", found) == (
        "nodes: 1 spare · missing: rank 1 · disconnected: h1/0"
        " · lost: n0/0, n1/0, n2/0, n3/0, n4/0, n5/0 and 2 more · excluded: bad/0"
    )
    assert line("nodes", status(node(0))) == ""


def test_a_host_that_does_not_lead_says_who_does() -> None:
    hosts = {"hosts": ["a:1", "b:1"], "leader": "b:1", "term": 7, "lease_s": 0.0}
    assert status_lines(status() | hosts) == [
        "this host is not the leader, and no leader answers",
        "leader b:1, term 7 · other hosts: a:1",
    ]
    leads = status_lines(status() | hosts | {"leader": "a:1", "lease_s": 2.0})
    assert leads[-1] == "leader a:1, term 7, lease 2.0 s · other hosts: b:1"
