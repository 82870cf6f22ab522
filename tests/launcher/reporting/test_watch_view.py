"""The screen of ``ft-run status --watch``: pure."""

from typing import Any

import pytest
from ft_run.launcher.reporting.status_answer import status_dict
from ft_run.launcher.reporting.watch_view import in_order, view
from ft_run.rendezvous.protocol.status import NodeStatus, StatusReply
from ft_run.rendezvous.protocol.steps import RankSteps


def node(
    rank: int,
    steps: int = -1,
    speed: float = 2.0,
    idle_s: float = 0.1,
    *,
    attached: bool = True,
    data_wait: float = 0.0,
) -> NodeStatus:
    workers = (RankSteps(rank, steps, speed, idle_s, data_wait),) if steps >= 0 else ()
    phase = "running" if rank >= 0 else "ready"
    host = f"gpu{rank:04}.rack.example.com"
    return NodeStatus(f"{host}/0", host, "10.0.0.1", "r", phase, rank, rank, 1, attached, workers)


def job(*nodes: NodeStatus, **more: Any) -> dict[str, Any]:
    reply = StatusReply("j", "running", 3, 1, 2, 1, 9999, 2, 100.0, 10.0, nodes)
    return status_dict(reply) | more


def shown(status: dict[str, Any], width: int, height: int, link: str = "") -> list[str]:
    lines = view(status, link, "11:22:33", width, height)
    assert len(lines) == height
    assert all(line.cell_len <= width for line in lines)
    return [line.plain.rstrip() for line in lines]


def test_nodes_that_wait_for_data_at_80_columns() -> None:
    lines = shown(job(node(0, 70, data_wait=0.38), node(1, 70), node(-1)), 80, 20)
    rows = [line.split() for line in lines if "gpu" in line or "HOST" in line]
    assert [row[-1] for row in rows] == ["DATA", "38%", "0%", "-"]


def test_two_nodes_at_80_columns() -> None:
    events = [
        {"time": f"2026-11-25T10:00:0{n}.1Z", "severity": "info", "text": f"event {n} " * 20}
        for n in range(9)
    ]
    lines = shown(job(node(0, 70), node(1, 71), events=events), 80, 20)
    assert lines[0] == " job j · running" + " " * 55 + "11:22:33"
    assert lines[1:6] == [
        "round 3 up 0:00:10 · nodes 2 of 1:9999 · restarts 1/2 · master up 0:01:40",
        "training: step 71, 0.1 s ago · 2 steps/s",
        "",
        "NODE  HOST                      RANKS  PHASE    STEP  STEPS/S  LAST STEP",
        "0     gpu0000.rack.example.com  0      running  70    2        0.1 s",
    ]
    assert lines[-6] == ""
    assert [line[:16] for line in lines[-5:]] == [f"10:00:0{n} event {n}" for n in range(4, 9)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (20, 6), (40, 8), (80, 12)])
def test_a_thousand_nodes_are_cut(width: int, height: int) -> None:
    lines = shown(job(*(node(rank, 70) for rank in range(1000))), width, height)
    (more,) = [line for line in lines if "more nodes" in line] or [""]
    rows = sum("gpu0" in line and line[0].isdigit() for line in lines)
    if height > 6:
        assert more == f"… {1000 - rows} more nodes"
    if height >= 24:
        assert rows >= height - 7


def test_no_row_is_wasted_if_all_nodes_fit() -> None:
    for height in (8, 9, 10):
        lines = shown(job(*(node(rank, 70) for rank in range(3))), 80, height)
        assert sum("gpu0" in line for line in lines) == 3
        assert not any("more" in line for line in lines)


def test_nodes_that_need_attention_come_first() -> None:
    status = job(
        node(0, 70), node(1, 71), node(2, 40), node(3, 71, 1.0), node(4, 71, 2.0, 30.0),
        node(5, 71, 2.01), node(6, 71, 2.0, 90.0), node(-1), node(7, attached=False), node(8),
    )  # fmt: skip
    assert [one["node_rank"] for one in in_order(status)] == [7, 6, 4, 2, 8, 3, 0, 1, 5, -1]
    lines = shown(status, 100, 24)
    assert "disconnected" in next(line for line in lines if line.startswith("7 "))
    assert next(line for line in lines if line.startswith("6 ")).endswith("-        0:01:30")
    assert next(line for line in lines if line.startswith("- ")).split()[3] == "spare"


def test_what_is_wrong_with_the_link_replaces_the_time() -> None:
    lines = shown(job(node(0, 70)), 80, 24, "no answer for 7 s")
    assert lines[0].endswith(" no answer for 7 s")
    assert "11:22:33" not in lines[0]


def test_what_nodes_say_steers_no_terminal() -> None:
    evil = "\x1b]0;x\x07\nh"
    reply = StatusReply(evil, evil, 1, nodes=(NodeStatus(evil, evil, "", "", evil, 0, 0, 1, True),))
    events = [{"time": evil, "severity": evil, "text": evil}]
    for line in view(status_dict(reply) | {"events": events}, evil, "", 80, 24):
        assert not {"\x1b", "\x07", "\n"} & set(line.plain)
