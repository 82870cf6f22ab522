"""``--auto-tune on`` on a node: from the pages of its workers to lines, and to what they read."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ft_run.events.event import Event
from ft_run.launcher.agent import auto_tune
from ft_run.launcher.agent.auto_tune import AutoTune, Machine
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.tuning import trial, tuner
from ft_run.launcher.tuning.rules import Rules
from ft_run.launcher.workers.tune_file import TunedValues, TuneFile
from ft_run.launcher.workers.worker_group import WorkerGroupState
from ft_run.rendezvous.protocol.claim import Past
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.rendezvous.protocol.tuned import Retune, TunedValue
from ft_run.tests.harness.scene import worker_failure
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker import phases, start, tuning_page
from ft_run.training.worker.tuning_page import NOTHING, TRIAL, TuningPage, pack
from ft_run.values import replace

FIRST = Assignment(0, "m", 0, 0, 1, 0, 1, 0, 1, "n", "127.0.0.1", 1, "", None)
STEP_NS = 50_000_000


class Node:
    """One node with a worker whose loader is twice as fast with two processes."""

    def __init__(self, kept: Mapping[str, Any], threads: int = 0) -> None:
        self.watch = WorkerWatch()
        self.group: Any = SimpleNamespace(watches=(self.watch,), state=WorkerGroupState.RUNNING)
        self.lines: list[str] = []
        self.values = TunedValues(settings=tuple(kept.items()))
        self.kept: list[tuple[dict[str, int], float]] = []
        self.orders: list[tuple[Retune, bool]] = []
        self.has_snapshot = self.has_loader = True
        self.is_fast = False
        self.auto = AutoTune(
            Machine(2, 2, 1, threads),
            cast(TuneFile, self),
            self._note,
            retune=lambda *order: self.orders.append(order),
            has_snapshot=lambda: self.has_snapshot,
        )
        self._page = self.watch._page
        self._now_ns = time.monotonic_ns()
        self._step = 0

    def keep(self, values: TunedValues, _: object) -> None:
        """Keep values, as a tune file does."""
        self.kept.append((dict(values.settings), values.gain))

    def _note(self, event: Event) -> None:
        self.lines.append(str(event).removeprefix("round=0 node_rank=0 "))

    def begin(self, assignment: Assignment = FIRST) -> None:
        self.auto.begin(assignment)
        self.worker = TuningPage(start.Page(self._page))
        self._page[layout.PID] = 1
        self._page[layout.PHASE] = phases.TRAINING
        self.auto.started(self.group)

    @property
    def wanted(self) -> int:
        return self.worker.wanted

    def train(self, steps: int) -> None:
        """Complete steps; each waits for data."""
        wanted = self.wanted
        if self.has_loader:
            self.worker.in_effect(tuning_page.completed(wanted & ~NOTHING, pack(1, 2)))
        fast = tuning_page.unpack(wanted)[0] == 2 or self.is_fast
        self._now_ns += steps * (STEP_NS // 2 if fast else STEP_NS)
        self._step += steps
        self._page[layout.STEP], self._page[layout.STEP_NS] = self._step, self._now_ns
        self._page[layout.BATCHES] += steps
        self._page[layout.WAIT_NS] += steps * STEP_NS // 3

    def look(self, steps: int = 6) -> None:
        self.train(steps)
        if self.auto._timer is not None:
            self.auto._timer.cancel()
        self.auto._look()

    def until(self, wanted: int) -> None:
        for _ in range(100):
            if self.wanted == wanted:
                return
            self.look()
        pytest.fail(f"{self.wanted:x}, not {wanted:x}")

    def close(self) -> None:
        self.auto.close()
        self.watch.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules(skip_steps=2, skip_s=0.05, block_steps=5, block_s=0.1, pause_s=0.1)
    for module in (trial, tuner):
        monkeypatch.setattr(module, "RULES", replace(rules, cost_share=1000.0))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def run(
    loop: asyncio.AbstractEventLoop,
    test: Any,
    kept: Mapping[str, int] | None = None,
    threads: int = 0,
) -> Node:
    node = Node(kept or {}, threads)

    async def steps() -> None:
        test(node)
        node.close()

    loop.run_until_complete(steps())
    return node


def test_what_is_accepted_is_kept_and_holds_in_later_rounds(
    loop: asyncio.AbstractEventLoop,
) -> None:
    def test(node: Node) -> None:
        node.begin()
        assert node.wanted == NOTHING
        node.until(pack(2, 2) | TRIAL)
        node.until(pack(2, 2))
        ((kept, gain),) = node.kept
        assert kept == {"num_workers": 2}
        assert gain == pytest.approx(1.0)
        node.begin(replace(FIRST, round=1))
        assert node.wanted == pack(2, 0)

    lines = run(loop, test).lines
    assert lines[0] == ("auto-tune: num_workers 1 -> 2: accepted (50 -> 25 ms a step, +100.0%)")
    assert lines[-1].endswith("DataLoader(num_workers=2), +100.0% steps/s")


def test_what_fails_is_rolled_back_and_what_only_ends_too(loop: asyncio.AbstractEventLoop) -> None:
    def test(node: Node) -> None:
        node.begin()
        node.until(pack(2, 2) | TRIAL)
        node.begin(replace(FIRST, round=1, cause=worker_failure(0)))
        assert node.wanted == NOTHING
        node.until(pack(2, 2) | TRIAL)
        assert node.watch.trial == ""
        node.train(1)
        assert node.watch.trial == "num_workers=2 prefetch_factor=2"
        node.begin(replace(FIRST, round=2, cause=worker_failure(0, trial=node.watch.trial)))
        assert node.watch.trial == ""

    lines = run(loop, test).lines
    assert lines[:2] == [
        "auto-tune: num_workers 1 -> 2: back to 1, the round ended",
        "round=1 node_rank=0 auto-tune: num_workers 1 -> 2: back to 1, failed: rank 0 on node 0"
        " (host-0) exited with 1",
    ]


@pytest.mark.parametrize("is_checkpoint", [True, False])
def test_a_checkpoint_or_an_activity_disturbs(
    loop: asyncio.AbstractEventLoop, *, is_checkpoint: bool
) -> None:
    def test(node: Node) -> None:
        node.begin()
        node.until(pack(2, 2) | TRIAL)
        for _ in range(100):
            if node.lines:
                break
            if is_checkpoint:
                node.worker.stepped(node._step, is_disturbed=True)
            else:
                node._page[layout.SUMS + phases.OTHERS] += 10**6
            node._page[layout.SUMS + phases.SAVING] += 10**6  # a snapshot is no disturbance
            node.look()

    assert "disturbed too many blocks" in run(loop, test).lines[0]


def test_values_of_a_file_begin_at_once(loop: asyncio.AbstractEventLoop) -> None:
    def test(node: Node) -> None:
        node.begin()
        assert node.wanted == pack(2, 0)
        node.until(pack(2, 2))

    node = run(loop, test, {"num_workers": 2})
    assert node.lines[0] == "auto-tune: num_workers=2 from --tune-file"


def test_other_nodes_and_other_scripts_tune_nothing(loop: asyncio.AbstractEventLoop) -> None:
    def other(node: Node) -> None:
        node.begin(replace(FIRST, node_rank=1))
        assert node.wanted == 0

    assert run(loop, other).lines == []

    def without_loader(node: Node) -> None:
        node.begin()
        node.auto._look()  # before the first step
        node.train(1)
        node.worker.in_effect(0)
        node.auto._look()
        assert node.wanted == NOTHING

    (line,) = run(loop, without_loader).lines
    assert line.startswith(
        "auto-tune: nothing was tuned: no step of a Checkpointer used a DataLoader"
    )

    def without_checkpointer(node: Node) -> None:
        node.has_snapshot = False
        node.begin()
        node.worker.declare(b'{"depth": [1, [1, 2]]}')
        node.auto._look()

    (line,) = run(loop, without_checkpointer).lines
    assert line.endswith("OMP_NUM_THREADS and tuned values need snapshots of a Checkpointer")


TWO = TunedValue("OMP_NUM_THREADS", "2")


def next_round(node: Node, order: Retune, **more: Any) -> None:
    """Let the master follow an order."""
    past = Past(values=order.values, trial=order.trial)
    node.is_fast = TWO in (order.trial, *order.values)
    node.begin(replace(FIRST, round=order.round + 1, past=past, **more))


def until_order(node: Node) -> tuple[Retune, bool]:
    """Train until an order that was not there before."""
    before = len(node.orders)
    for _ in range(100):
        if len(node.orders) > before:
            return node.orders[-1]
        node.look()
    pytest.fail("no order")


def test_threads_are_tried_in_rounds_and_accepted_in_the_last(
    loop: asyncio.AbstractEventLoop,
) -> None:
    def test(node: Node) -> None:
        node.has_loader = False
        node.begin()
        for value in (TWO, None, TWO, None, TWO):
            order, is_accepted = until_order(node)
            assert (order.values, order.trial, is_accepted) == ((), value, False)
            node._page[layout.SUMS + phases.RESTORING] += 10**6  # of a start, which disturbs none
            next_round(node, order)
        assert until_order(node) == (Retune(5, (TWO,)), True)
        assert node.kept[0][0] == {"OMP_NUM_THREADS": 2}
        node.begin(replace(FIRST, round=6, past=Past(values=(TWO,)), cause=worker_failure(0)))
        for _ in range(5):
            node.look()
        assert len(node.orders) == 6

    lines = run(loop, test, threads=1).lines
    assert "OMP_NUM_THREADS 1 -> 2: accepted (50 -> 25 ms a step, +100.0%)" in lines[0]
    assert lines[-1] == "auto-tune: 1 trial: OMP_NUM_THREADS=2, +100.0% steps/s"


def test_an_order_is_repeated_until_its_round_begins(loop: asyncio.AbstractEventLoop) -> None:
    def test(node: Node) -> None:
        node.has_loader = False
        node.begin()
        order = until_order(node)
        node.look()
        node.look()
        assert node.orders == [order] * 3

    assert "back to 1, the round ended" in run(loop, test, threads=1).lines[0]


def test_a_trial_ends_with_its_world_and_what_it_left_is_undone(
    loop: asyncio.AbstractEventLoop,
) -> None:
    def test(node: Node) -> None:
        node.has_loader = False
        node.begin()
        next_round(node, until_order(node)[0], world_size=2)
        assert node.lines
        assert until_order(node) == (Retune(1, ()), False)
        next_round(node, node.orders[-1][0], world_size=2)
        assert until_order(node)[0].trial == TWO  # it comes again

    assert (
        "OMP_NUM_THREADS 1 -> 2: back to 1, the round ended" in run(loop, test, threads=1).lines[0]
    )


def test_a_value_that_fails_is_forbidden(loop: asyncio.AbstractEventLoop) -> None:
    def test(node: Node) -> None:
        node.has_loader = False
        node.begin()
        next_round(node, until_order(node)[0])
        cause = worker_failure(0, trial=str(TWO))
        node.is_fast = False
        node.begin(replace(FIRST, round=2, cause=cause))
        for _ in range(20):
            node.look()
        assert len(node.orders) == 1

    lines = run(loop, test, threads=1).lines
    assert "OMP_NUM_THREADS 1 -> 2: back to 1, failed: rank 0" in lines[0]


def test_a_value_with_which_no_step_is_done_is_given_up(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def test(node: Node) -> None:
        node.has_loader = False
        node.begin()
        next_round(node, until_order(node)[0])
        node.auto._look()
        assert len(node.orders) == 1
        monkeypatch.setattr(auto_tune, "_STALLED_S", -1000.0)
        node.auto._look()
        assert node.orders[1:] == [(Retune(1, ()), False)]
        next_round(node, node.orders[1][0])
        for _ in range(20):
            node.look()
        assert len(node.orders) == 2

    assert "back to 1, failed: no step in ten" in run(loop, test, threads=1).lines[0]


@pytest.mark.parametrize("what", ["no snapshot", "a GPU", "set by the user"])
def test_where_threads_are_not_tried(loop: asyncio.AbstractEventLoop, what: str) -> None:
    def test(node: Node) -> None:
        node.has_snapshot = what != "no snapshot"
        node.begin()
        node._page[layout.USES_DEVICE] = what == "a GPU"
        for _ in range(100):
            node.look()
        assert not any(isinstance(order.trial, TunedValue) for order, _ in node.orders)
        assert node.lines

    last = run(loop, test, threads=what != "set by the user").lines[-1]
    reason = "; OMP_NUM_THREADS and tuned values need snapshots of a Checkpointer"
    assert last.endswith(reason if what == "no snapshot" else "steps/s")


def test_values_of_a_script_are_those_that_it_has_declared(
    loop: asyncio.AbstractEventLoop,
) -> None:
    def test(node: Node) -> None:
        node.has_loader = False
        node.begin()
        node.worker.declare(b'{"depth": ["a", ["a", "b"]]}')
        assert until_order(node)[0].trial == TunedValue('tuned("depth")', '"b"')

    run(loop, test)


def test_a_kept_value_that_the_script_no_longer_names_stops_nothing(
    loop: asyncio.AbstractEventLoop,
) -> None:
    def test(node: Node) -> None:
        node.has_loader = False
        past = Past(values=(TunedValue('tuned("depth")', "7"),))
        node.begin(replace(FIRST, past=past))
        node.worker.declare(b'{"depth": [1, [1, 2]]}')
        order, is_accepted = until_order(node)
        assert order.trial == TunedValue('tuned("depth")', "2")
        assert not is_accepted

    run(loop, test)
