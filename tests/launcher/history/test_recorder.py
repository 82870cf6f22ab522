"""The record of an event: who, when and what."""

from typing import Any

from ft_run.events.event import LogMessage
from ft_run.events.node import MasterConnected, NodeStarted, ThisNodeRenamed
from ft_run.events.record import Record
from ft_run.events.workers import WorkersSucceeded
from ft_run.launcher.history.recorder import Clocks, Recorder, attempt_of


class HandClocks:
    """Clocks that a test moves."""

    def __init__(self) -> None:
        self.wall, self.running, self.boot = 1_795_588_708.123456, 50.0, 70.0

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.running += seconds
        self.boot += seconds

    def made(self) -> Clocks:
        return Clocks(lambda: self.wall, lambda: self.running, lambda: self.boot)


def test_a_record_has_who_when_and_what() -> None:
    clocks, records = HandClocks(), list[Record]()
    recorder = Recorder("job", 2, clocks.made())
    recorder.add(records.append)
    recorder.node = "vm/0"
    clocks.passes(1.5)
    recorder.event(WorkersSucceeded(4, 0, 2, 1))
    recorder.event(MasterConnected(is_again=True))
    first, second = records
    assert first == {
        "time": "2026-11-25T06:38:29.623456Z",
        "uptime_s": 1.5,
        "name": "workers.succeeded",
        "version": 1,
        "severity": "info",
        "job": "job",
        "attempt": 2,
        "node": "vm/0",
        "round": 4,
        "node_rank": 0,
        "workers": 2,
        "nodes": 1,
        "text": "round=4 node_rank=0 all 2 worker(s) of this node finished",
    }
    assert second["round"] == 4  # the last one that this process reported


def test_the_node_is_named_as_the_master_named_it() -> None:
    records: list[Any] = []
    recorder = Recorder("job")
    recorder.add(records.append)
    recorder.event(LogMessage("early"))
    recorder.event(NodeStarted("job", "vm/0", 1, "s", "m"))
    recorder.event(ThisNodeRenamed("vm/0", "vm/1"))
    assert [record["node"] for record in records] == ["", "vm/0", "vm/1"]


def test_a_suspension_of_the_host_is_an_event_and_a_clock_that_was_set_is_none() -> None:
    clocks, records = HandClocks(), list[Record]()
    recorder = Recorder("job", clocks=clocks.made())
    recorder.add(records.append)
    clocks.wall -= 3600.0
    recorder.event(LogMessage("a"))
    clocks.passes(1.0)
    clocks.boot += 30.0
    clocks.wall += 30.0
    recorder.event(LogMessage("b"))
    recorder.event(LogMessage("c"))
    assert [(r["name"], r["uptime_s"]) for r in records] == [
        ("log.message", 0.0), ("host.suspended", 31.0), ("log.message", 31.0),
        ("log.message", 31.0),
    ]  # fmt: skip
    assert records[1]["seconds"] == 30.0


def test_a_sink_of_some_names_receives_these_only() -> None:
    records: list[Record] = []
    recorder = Recorder("job")
    recorder.add(records.append, frozenset({"master.connected"}))
    recorder.event(LogMessage("a"))
    recorder.event(MasterConnected(is_again=False))
    assert [record["name"] for record in records] == ["master.connected"]


def test_control_characters_do_not_reach_a_terminal() -> None:
    record = Recorder("job").record(LogMessage("a\x1b[31m\nb"))
    assert record["sentence"] == "a\x1b[31m\nb"  # JSON escapes them
    assert "\x1b" not in record["text"]


def test_the_attempt_is_that_of_slurm() -> None:
    assert attempt_of({"SLURM_RESTART_COUNT": "3"}) == 3
    assert attempt_of({}) == attempt_of({"SLURM_RESTART_COUNT": "x"}) == 0
