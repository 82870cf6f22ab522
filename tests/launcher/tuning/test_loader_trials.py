"""``--auto-tune on`` on a node: from the pages of its workers to lines, and to what they read."""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from ft_run.events.event import Event
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.tuning import trial, tuner
from ft_run.launcher.tuning.job_values import Tuning
from ft_run.launcher.tuning.loader_trials import LoaderTrials
from ft_run.launcher.tuning.trial import Rules
from ft_run.launcher.tuning.tune_file import Settings, TunedValues, TuneFile
from ft_run.launcher.workers.worker_group import WorkerGroupState
from ft_run.rendezvous.protocol.carried import Carried, CarriedValue
from ft_run.rendezvous.protocol.claim import Past
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.tests.harness.scene import worker_failure
from ft_run.training.worker import loader_settings, phases, start
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker.loader_settings import NOTHING, TRIAL, pack
from msgspec.structs import replace

FIRST = Assignment(0, "m", 0, 0, 1, 0, 1, 0, 1, "n", "127.0.0.1", 1, "", None)
STEP_NS = 50_000_000


class Node:
    """One node with a worker whose loader is twice as fast with two processes."""

    def __init__(self, kept: Mapping[str, int]) -> None:
        self.watch = WorkerWatch()
        self.group: Any = SimpleNamespace(watches=(self.watch,), state=WorkerGroupState.RUNNING)
        self.lines: list[str] = []
        self.values = TunedValues(settings=Settings(**kept))
        self.kept: list[tuple[dict[str, int], float]] = []
        self.auto = LoaderTrials(2, 1, cast(TuneFile, self))
        self.auto.listen(self.note, None)
        self._page = self.watch._page
        self._now_ns = time.monotonic_ns()
        self._step = 0

    def keep(self, values: TunedValues, _: object) -> None:
        """Keep values, as a tune file does."""
        self.kept.append((values.settings.by_name(), values.gain))

    def note(self, event: Event) -> None:
        self.lines.append(str(event).removeprefix("round=0 node_rank=0 "))

    def begin(self, assignment: Assignment = FIRST) -> None:
        self.auto.begin(assignment)
        hook: Any = ModuleType("_ft_run_hook")
        hook.page = start.Page(self._page)
        sys.modules["_ft_run_hook"] = hook
        self._page[layout.PID] = 1
        self._page[layout.PHASE] = phases.TRAINING
        self.auto.started(self.group)

    @property
    def wanted(self) -> int:
        return loader_settings.wanted()

    def train(self, steps: int) -> None:
        """Complete steps; each waits for data."""
        wanted = self.wanted
        loader_settings.record(loader_settings.completed(wanted & ~NOTHING, pack(1, 2)))
        fast = loader_settings.unpack(wanted)[0] == 2
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
    monkeypatch.setitem(sys.modules, "_ft_run_hook", ModuleType("_ft_run_hook"))
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
) -> Node:
    node = Node(kept or {})

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


def test_values_of_a_step_that_ends_during_the_read_are_not_used(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []

    def test(node: Node) -> None:
        node.begin()
        node.train(1)
        found = node.watch.phases(time.monotonic())

        def phases_at_the_end_of_a_step(_: float) -> Any:
            node.train(1)
            return found

        monkeypatch.setattr(node.watch, "phases", phases_at_the_end_of_a_step)
        monkeypatch.setattr(node.auto._tuner, "read", read.append)
        node.auto._look()

    run(loop, test)
    assert not read


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
                loader_settings.record_step(node._step, is_disturbed=True)
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
        loader_settings.record(0)
        node.auto._look()
        assert node.wanted == NOTHING

    (line,) = run(loop, without_loader).lines
    assert line.startswith(
        "auto-tune: nothing was tuned: no step of a Checkpointer used a DataLoader"
    )


def test_accepted_values_are_used_by_the_next_node_with_rank_0(
    loop: asyncio.AbstractEventLoop,
) -> None:
    carried: list[Carried] = []

    def first(node: Node) -> None:
        tuning = Tuning(trials=node.auto)
        tuning.listen(node.note)
        tuning.begin(FIRST)
        node.begin()
        assert tuning.carried == ()
        node.until(pack(2, 2) | TRIAL)
        assert tuning.carried == ()
        node.until(pack(2, 2))
        carried.append(tuning.carried)
        tuning.begin(replace(FIRST, round=1, node_rank=1, past=Past(carried=())))
        assert tuning.carried == carried[0]  # it has not arrived, and is offered again

    run(loop, first)
    assert carried == [(CarriedValue("num_workers", 2, 1),)]

    def second(node: Node) -> None:
        tuning = Tuning(trials=node.auto)
        tuning.listen(node.note)
        for rank in (1, 0):
            assignment = replace(FIRST, node_rank=rank, past=Past(carried=carried[0]))
            tuning.begin(assignment)
            assert tuning.carried == carried[0]
        node.begin(assignment)
        assert node.wanted == pack(2, 0)

    lines = run(loop, second, {"num_workers": 1}).lines
    assert not any("from --tune-file" in line for line in lines)
