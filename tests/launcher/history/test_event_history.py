"""What the events of a process say when somebody asks."""

import json
from typing import Any

import pytest
from ft_run.events.event import LogMessage, Severity
from ft_run.events.master import NodeJoined
from ft_run.events.node import NodeStarted
from ft_run.events.workers import RestartBegun, RoundStarted
from ft_run.launcher.history import event_history
from ft_run.launcher.history.event_history import EventHistory
from ft_run.launcher.history.recorder import Clocks
from ft_run.rendezvous.protocol.failure import node_lost

STARTED = NodeStarted("job", "vm/0", 1, "s", "m")
RESTART = RestartBegun(1, 0, node_lost(1, "h", "r", "gone"), "", False, 1, 3)


def told(history: EventHistory) -> dict[str, Any]:
    return dict(json.loads(history.report()))


@pytest.mark.parametrize("most", [1, 5_000])
def test_the_summary_has_the_times_at_which_events_happened(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_history, "_WAITING_MAX", most)
    now = [1000.0]
    history = EventHistory("job", 2, Clocks(*[lambda: now[0]] * 3))
    for event in (STARTED, RoundStarted(0, 0, 1, 1, 0, "r", -1, True, 0, 1), RESTART):
        history.note(event)
        now[0] += 10
    history.note(LogMessage("not shown", Severity.DEBUG))
    history.note(NodeJoined("vm/1", "a", "vm", 1, "r"))
    report = told(history)
    assert report["time_s"] == 1030
    summary = report["summary"]
    assert (summary["job"], summary["attempt"], summary["started_at_s"]) == ("job", 2, 1000)
    assert summary["restarts"]["last"][0]["at_s"] == 1020
    assert [event["name"] for event in report["events"]] == [
        "agent.started",
        "restart.decided",
        "node.joined",
    ]
    assert report["events"][1]["time"] == "1970-01-01T00:17:00.000000Z"
    assert told(history) == report


def test_a_bounded_number_of_lines_and_restarts_is_kept() -> None:
    history = EventHistory("job", 0)
    assert told(history)["summary"] is None
    history.note(STARTED)
    for number in range(50):
        history.note(RestartBegun(number, 0, node_lost(1, "h", "r", "x"), "", False, 1, 3))
    report = told(history)
    assert len(report["events"]) == 20
    assert report["summary"]["restarts"]["count"] == 50
    assert len(report["summary"]["restarts"]["last"]) == 5
