"""The progress of workers as events: the first step, then once a minute."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ft_run.events.event import Event, Severity
from ft_run.events.node import DrainOrdered, NodePreempted
from ft_run.events.workers import (
    HangDismissed,
    HangSuspected,
    RoundProgressed,
    TrainingStarted,
    WorkerExited,
    WorkersStopped,
)
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.workers import step_events
from ft_run.launcher.workers.step_events import StepEvents
from ft_run.launcher.workers.worker_group import WorkerGroup, WorkerGroupState
from ft_run.rendezvous.protocol.offer import Replica, Snapshot, Snapshots
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker import phases

BUILDING = "importing and building"


class Node:
    """A node with two workers; a test moves the clock, and runs the timer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_watched: bool = True) -> None:
        self.now = 100.0
        self.events: list[Event] = []
        self.delays: list[float] = []
        self.watches = (WorkerWatch(), WorkerWatch()) if is_watched else (None, None)
        self.group = SimpleNamespace(
            assignment=SimpleNamespace(round=2, node_rank=1),
            watches=self.watches,
            has_first_exited=False,
            state=WorkerGroupState.RUNNING,
        )
        self.held: Snapshots | None = None
        self.stepped: list[object] = []
        self.progressed: list[tuple[object, ...]] = []
        self.steps = StepEvents(
            self.events.append,
            lambda: self.held,
            lambda *arguments: self.progressed.append(arguments),
            self.stepped.append,
        )
        for watch in filter(None, self.watches):
            watch._page[layout.SINCE_NS] = int(self.now * 1e9)
        self._due: Any = None
        monkeypatch.setattr(step_events, "time", SimpleNamespace(monotonic=lambda: self.now))
        loop = SimpleNamespace(call_later=self._call_later)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)

    def _call_later(self, delay_s: float, call: Any) -> Any:
        self.delays.append(delay_s)
        self._due = call
        return SimpleNamespace(cancel=lambda: None)

    def begin(self) -> None:
        self.steps.begin(cast(WorkerGroup, self.group))

    def waits(self) -> float:
        """Let the time of the timer pass; return it."""
        self.now += self.delays[-1]
        due, self._due = self._due, None
        due()
        return self.delays[-1]

    def spends(self, phase: int, seconds: float) -> None:
        """The first worker spends time, then begins a phase."""
        watch = self.watches[0]
        assert watch is not None
        page = watch._page
        page[layout.SUMS + page[layout.PHASE]] += int(seconds * 1e9)
        self.now += seconds
        page[layout.PHASE], page[layout.SINCE_NS] = phase, int(self.now * 1e9)

    def does(self, index: int, *, ticks: int, said: int = -1) -> None:
        """A worker has done some steps, the last one now."""
        watch = self.watches[index]
        assert watch is not None
        page = watch._page
        page[layout.PID], page[layout.TICKS], page[layout.FURTHEST] = 1, ticks, said + 1
        page[layout.LAST_NS] = int(self.now * 1e9)
        page[layout.FIRST] = page[layout.FIRST] or said + 1


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(monkeypatch)
    yield node
    for watch in node.watches:
        assert watch is not None
        watch.close()


def test_a_report_of_progress_is_followed_by_the_first_workers_training(node: Node) -> None:
    node.begin()
    node.does(0, ticks=3)
    node.spends(phases.TRAINING, 1.0)
    node.spends(phases.SAVING, 4.0)
    assert node.watches[0] is not None
    node.watches[0]._page[layout.STEPS] = 6
    node.waits()
    assert node.progressed == [(node.group, 4.0, 6)]


def test_the_first_step_of_any_worker_starts_the_training(node: Node) -> None:
    node.begin()
    for _ in range(20):
        node.waits()
    assert not node.events
    node.does(1, ticks=1, said=7)
    node.waits()
    node.waits()
    assert node.events[0] == TrainingStarted(2, 1, 7)
    assert node.stepped == [node.group]
    assert node.delays[-1] <= 60.0
    assert len(node.events) == 2  # and the first minute is over


def test_it_looks_less_and_less_often_until_the_first_step(node: Node) -> None:
    node.begin()
    while node.now < 1000.0:
        share = node.delays[-1] / max(node.now + node.delays[-1] - 100.0, 0.05)
        assert node.delays[-1] == 0.05 or share <= 0.05
        node.waits()
    assert max(node.delays) == 15.0


def test_progress_is_reported_once_a_minute(node: Node) -> None:
    node.does(0, ticks=3)
    node.begin()
    for minute in range(1, 4):
        node.does(0, ticks=3, said=10 * minute)
        node.does(1, ticks=3, said=9)
        node.waits()
    assert node.events == [
        TrainingStarted(2, 1, -1),
        *(
            RoundProgressed(
                2, 1, 10 * minute, 0.0, 60.0, doing=BUILDING, phases={BUILDING: 60.0 * minute}
            )
            for minute in range(1, 4)
        ),
    ]
    assert node.delays == [60.0] * 4


def test_progress_has_the_newest_snapshot_and_the_newest_replica(node: Node) -> None:
    node.does(0, ticks=3)
    node.begin()
    for held, replicas in (((), ()), ((20, 30), ()), ((30, 40), (20, 30)), ((), (40,))):
        own = tuple(Snapshot(step, 2, 0, False) for step in held)
        others = tuple(Replica(step, 2, (1,)) for step in replicas)
        node.held = Snapshots(2, "m", own, others)
        node.waits()
    found = [event for event in node.events if isinstance(event, RoundProgressed)]
    assert [(event.snapshot, event.replica) for event in found] == [
        (-1, -1),
        (30, -1),
        (40, 30),
        (-1, 40),
    ]


def test_of_workers_that_are_not_watched_only_the_running_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch, is_watched=False)
    node.begin()
    node.waits()
    assert node.events == [RoundProgressed(2, 1, -1, 0.0, 0.0)]


def exits(local_rank: int) -> WorkerExited:
    return WorkerExited(2, 1, 4 + local_rank, local_rank, 1, 0, False)


def test_the_phases_are_reported_before_an_event_that_changes_what_time_counts_as(
    node: Node,
) -> None:
    node.begin()
    node.spends(phases.JOINING, 3.0)
    node.spends(phases.FIRST_STEP, 1.0)
    node.does(0, ticks=1)
    node.spends(phases.TRAINING, 0.5)
    node.waits()
    known = {BUILDING: 3.0, "joining": 1.0, "first step": 0.5, "training": 0.05}
    assert node.events[0] == RoundProgressed(
        2, 1, -1, 0.0, 0.55, doing="training", phases=known, idle_training_s=0.05
    )
    assert node.events[1] == TrainingStarted(2, 1, -1)
    node.now += 10.0
    suspected = HangSuspected(2, 1, (4,), 9.0)
    node.steps.note(exits(1))  # is no reason
    node.steps.note(suspected)
    known["training"] = 10.05
    assert node.events[2:] == [
        exits(1),
        RoundProgressed(
            2, 1, -1, 0.0, 10.55, doing="training", phases=known, idle_training_s=10.05
        ),
        suspected,
    ]
    failed = WorkersStopped(2, 1, 1, "r", False)
    node.steps.note(failed)
    node.steps.note(failed)
    assert node.events[6:] == [failed, failed]


@pytest.mark.parametrize("event", [NodePreempted("r", 15.0, 15.0), DrainOrdered("r", 15.0)])
def test_the_steps_and_the_wait_for_data_are_reported_before_a_drain(
    node: Node, event: Event
) -> None:
    node.begin()
    node.does(0, ticks=1)
    node.spends(phases.TRAINING, 1.0)
    watch = node.watches[0]
    assert watch is not None
    page = watch._page
    page[layout.STEPS], page[layout.BATCHES], page[layout.WAIT_NS] = 9, 4, int(0.5e9)
    node.steps.note(event)
    found, last = node.events
    assert isinstance(found, RoundProgressed)
    assert (found.counted_steps, found.data_wait_s, last) == (9, (0.5, 0.0), event)


def test_what_the_first_worker_did_is_known_until_its_exit(node: Node) -> None:
    node.begin()
    node.does(0, ticks=1)
    node.spends(phases.TRAINING, 1.0)
    node.now += 2.0
    node.group.has_first_exited = True
    node.steps.note(exits(0))
    node.now += 5.0
    stopped = WorkersStopped(2, 1, 1, "r", False)
    node.steps.note(stopped)
    exit_, reported, *rest = node.events
    assert (exit_, rest) == (exits(0), [stopped])  # one report
    assert cast(RoundProgressed, reported).phases == {BUILDING: 1.0, "training": 2.0}
    assert cast(RoundProgressed, reported).doing == ""


def test_the_first_step_after_a_stop_says_how_long_nothing_was_trained(node: Node) -> None:
    stopped = WorkersStopped(2, 1, 1, "r", False)
    node.begin()
    node.steps.note(stopped)
    node.now += 5.0
    node.begin()
    node.does(1, ticks=1)
    node.waits()
    assert node.events[-1] == TrainingStarted(2, 1)  # nothing was trained before
    node.steps.note(stopped)
    node.does(1, ticks=0)
    node.begin()  # a round that fails before its first step
    node.now += 5.0
    node.steps.note(stopped)
    node.begin()
    node.now += 2.0
    node.does(1, ticks=1, said=7)
    node.waits()
    resumed = node.events[-1]
    assert resumed == TrainingStarted(2, 1, 7, 7.05)
    assert str(resumed) == "round=2 node_rank=1 training resumed after 7.0 s (step 7)"
    assert resumed.severity is Severity.INFO
    node.begin()
    assert node.events[-1] == TrainingStarted(2, 1, 7)
    assert str(node.events[-1]) == "round=2 node_rank=1 first step completed"
    assert node.events[-1].severity is Severity.DEBUG


def test_of_a_program_with_two_processes_one_after_the_other_both_count(node: Node) -> None:
    node.begin()
    node.does(0, ticks=1)
    node.spends(phases.TRAINING, 4.0)
    node.steps.note(HangSuspected(2, 1, (4,), 1.0))
    watch = node.watches[0]
    assert watch is not None
    page = watch._page
    page[layout.PID], page[layout.SUMS] = 2, int(1.5e9)
    node.steps.note(HangDismissed(2, 1, ""))
    assert cast(RoundProgressed, node.events[2]).phases == {BUILDING: 5.5}


def test_it_ends_with_the_round(node: Node) -> None:
    node.begin()
    node.group.state = WorkerGroupState.STOPPING
    node.does(0, ticks=1)
    node.waits()
    assert not node.events
    assert node._due is None


def test_a_round_without_workers_of_this_node_reports_nothing(node: Node) -> None:
    node.begin()
    node.does(0, ticks=1)
    node.steps.begin(None)
    suspected = HangSuspected(2, 1, (4,), 9.0)
    node.steps.note(suspected)
    assert node.events == [suspected]
