"""What the events of a process say when somebody asks."""

import json
from typing import Any

import pytest
from ft_run.events.event import LogMessage, Severity
from ft_run.events.master import NodeJoined
from ft_run.events.node import NodeStarted, ThisNodeRenamed
from ft_run.events.workers import RestartBegun, RoundStarted
from ft_run.launcher.history import event_history
from ft_run.launcher.history.event_history import EventHistory
from ft_run.launcher.history.phases import Phase
from ft_run.launcher.history.recorder import Clocks, Recorder
from ft_run.rendezvous.protocol.failure import node_lost

STARTED = NodeStarted("job", "vm/0", 1, "s", "m")
RESTART = RestartBegun(1, 0, node_lost(1, "h", "r", "gone"), "", False, 1, 3)
NOW = [1000.0]


@pytest.fixture
def recorder() -> Recorder:
    NOW[0] = 1000.0
    return Recorder("job", 2, Clocks(*[lambda: NOW[0]] * 3))


def told(history: EventHistory) -> dict[str, Any]:
    return dict(json.loads(history.report()))


@pytest.mark.parametrize("most", [1, 1_000])
def test_the_summary_and_the_last_lines(
    most: int, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_history, "_WAITING_MAX", most)
    monkeypatch.setattr("ft_run.launcher.history.event_history.time.time", lambda: 1030.0)
    history = EventHistory()
    recorder.add(history.add)
    assert told(history)["summary"] is None
    for event in (STARTED, RoundStarted(0, 0, 1, 1, 0, "r", -1, True, 0, 1), RESTART):
        recorder.event(event)
        NOW[0] += 10
    recorder.event(LogMessage("not shown", Severity.DEBUG))
    recorder.event(NodeJoined("vm/1", "a", "vm", 1, "r"))
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


def test_a_bounded_number_of_lines_and_restarts_is_kept(recorder: Recorder) -> None:
    history = EventHistory()
    recorder.add(history.add)
    before = history.is_worth_folding
    for number in range(50):
        recorder.event(RestartBegun(number, 0, node_lost(1, "h", "r", "x"), "", False, 1, 3))
    assert (before, history.is_worth_folding) == (False, True)
    report = told(history)
    assert len(report["events"]) == 20
    assert report["summary"]["restarts"]["count"] == 50
    assert len(report["summary"]["restarts"]["last"]) == 5


def test_the_time_before_the_master_has_renamed_this_node_is_its_own(recorder: Recorder) -> None:
    history = EventHistory()
    recorder.add(history.add)
    recorder.node = "vm/0"
    NOW[0] += 3.0
    recorder.event(STARTED)
    NOW[0] += 5.0
    recorder.event(ThisNodeRenamed("vm/0", "vm/1"))
    account = history.folded().account("vm/1").account(recorder.uptime_s)
    assert account.phases == {Phase.STARTING: 3.0, Phase.WAITING: 5.0}


def test_a_history_that_nobody_asks_for_keeps_few_records(recorder: Recorder) -> None:
    history = EventHistory()
    recorder.add(history.add)
    for _ in range(2 * event_history._WAITING_MAX):
        recorder.event(RESTART)
    assert len(history._waiting) <= event_history._WAITING_MAX
