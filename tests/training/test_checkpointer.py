"""The Checkpointer in one process, without ft-run and with the memory that ft-run would hold."""

import gc
import importlib
import mmap
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from ft_run.tests.harness.descriptors import own_descriptors
from ft_run.tests.harness.log_lines import logged
from ft_run.training import Checkpointer, checkpointer
from ft_run.training.checkpoints import coordination, copying, storage
from ft_run.training.checkpoints.coordination import Bodies
from ft_run.training.checkpoints.copying import Background, LateCopy
from ft_run.training.checkpoints.folder import CheckpointFolder
from ft_run.training.checkpoints.layout import tag_of
from ft_run.training.checkpoints.replication import Replicas
from ft_run.training.checkpoints.snapshot_manager import StepReport
from ft_run.training.checkpoints.storage import OLD_S, of_bytes
from ft_run.training.checkpoints.storage_backends import LocalStorage
from ft_run.training.ranks import PendingMaximum, Ranks
from ft_run.training.worker import preemption
from ft_run.training.worker import snapshot_page as page
from ft_run.training.worker.preemption import Notice
from ft_run.training.worker.snapshot_memory import SaverLink
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

Given = Callable[..., memoryview]
ODD = Path(__file__).resolve().parents[1] / "harness" / "odd_storage"


class Sampler:
    """Anything with state; what it has may grow."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = dict(state)


class Script:
    """A training script: what it has in one life."""

    def __init__(
        self,
        folder: "Path | str",
        width: int = 3,
        momentum: float = 0.0,
        *,
        grows: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.grows = grows
        """Whether each step has more state than the one before, and so another layout."""
        self.model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))
        self.optimizer: Optimizer = Adam(self.model.parameters(), lr=0.1)
        if momentum:
            self.optimizer = SGD(self.model.parameters(), lr=0.1, momentum=momentum)
        self.sampler = Sampler()
        self.scheduler = StepLR(self.optimizer, 3)
        state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        state |= {"sampler": self.sampler, "scheduler": self.scheduler}
        self.checkpointer = Checkpointer(folder, state, **options)
        self.resumed_at = -1

    def train(self, total: int, until: int = 1000) -> "Script":
        """Train; die after ``until`` steps, when the last snapshot is complete."""
        for number in self.checkpointer.steps(total):
            if self.resumed_at < 0:
                self.resumed_at = number
            if number == until:
                self.checkpointer.wait()
                return self
            torch.manual_seed(number)
            self.optimizer.zero_grad()
            self.model(torch.randn(5, 4)).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()
            key = f"step {number}" if self.grows else "newest"
            self.sampler.seen[key] = [number, (1, "x"), {"a": torch.ones(2) * number}]
        return self

    def everything(self) -> list[Any]:
        """Return all of its state."""
        optimizer = self.optimizer.state_dict()
        values = [self.model.state_dict(), optimizer["state"], self.scheduler.state_dict()]
        return [str(values), optimizer["param_groups"], str(self.sampler.seen)]


@pytest.fixture(autouse=True)
def _tensors_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy those of this network while training goes on, as large ones."""
    monkeypatch.setattr(copying, "LARGE_BYTES", 1)


@pytest.fixture
def undisturbed(tmp_path: Path) -> list[Any]:
    """Everything after 10 steps."""
    return Script(tmp_path / "undisturbed", checkpoint_every=None).train(10).everything()


@pytest.mark.parametrize(
    ("way", "is_late"), [({}, True), ({"grows": True}, False), ({"overlap": False}, False)]
)
def test_a_snapshot_costs_one_step(
    tmp_path: Path,
    memory: Given,
    monkeypatch: pytest.MonkeyPatch,
    way: dict[str, bool],
    is_late: bool,
) -> None:
    late: list[bool] = []
    run = LateCopy.run

    def noted_run(self: LateCopy) -> bool:
        late.append(run(self))
        return late[-1]

    monkeypatch.setattr(LateCopy, "run", noted_run)
    options: dict[str, Any] = {"checkpoint_every": None, **way}
    undisturbed = Script(tmp_path, **options).train(10).everything()
    for step in (6, 5):
        memory(-1)
        Script(tmp_path, **options).train(10, until=6)
        assert any(late) == is_late
        memory(step)
        script = Script(tmp_path, **options).train(10)
        assert (script.resumed_at, script.everything()) == (step, undisturbed)


def held(given: memoryview) -> set[int]:
    """Return the steps of which there are snapshots."""
    return {e.step for i in range(page.BUFFERS) if (e := page.read(given, i)) is not None}


def test_the_optimizer_waits_for_the_copy(
    tmp_path: Path,
    memory: Given,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: list[Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    waited, wait, run = threading.Event(), Background.wait, LateCopy.run

    def said_wait(self: Background) -> None:
        if not self._last.done():
            waited.set()
        wait(self)

    def late_run(self: LateCopy) -> bool:
        waited.wait()
        waited.clear()
        return run(self)

    monkeypatch.setattr(Background, "wait", said_wait)
    monkeypatch.setattr(LateCopy, "run", late_run)
    given = memory(-1)
    Script(tmp_path, checkpoint_every=None).train(10, until=6)
    assert held(given) == {5, 6}
    assert capfd.readouterr().err == ""
    memory(6)
    assert Script(tmp_path, checkpoint_every=None).train(10).everything() == undisturbed


def test_fewer_steps_than_were_done_overwrite_no_checkpoint(tmp_path: Path) -> None:
    Script(tmp_path, checkpoint_every=2).train(4)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    Script(tmp_path, checkpoint_every=2).train(2)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("is_counted", [True, False])
def test_weights_that_something_else_changes(
    tmp_path: Path,
    memory: Given,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_counted: bool,
) -> None:
    may_copy, run = threading.Event(), LateCopy.run
    monkeypatch.setattr(LateCopy, "run", lambda self: (may_copy.wait(), run(self))[1])
    given = memory(-1)
    script = Script(tmp_path, checkpoint_every=None)
    for number in script.checkpointer.steps(8):
        # The first is of a new layout, and is written at once.
        expected = {0: set(), 1: {1}, 6: {4, 6}, 7: {6, 7}}
        assert held(given) == expected.get(number, {number - 1})
        if number == 5:
            with torch.no_grad():
                weight: Any = script.model[0].weight
                (weight if is_counted else weight.data).mul_(2)
        may_copy.set()
        script.optimizer.zero_grad()
        script.model(torch.randn(5, 4)).square().sum().backward()
        script.optimizer.step()
        may_copy.clear()
    assert logged(capfd) == [
        "no snapshot of step 5: weights or optimizer state were changed before the optimizer's "
        "next step; training waits for each copy from now on"
    ]
    assert held(given) == {7, 8}


def test_ranks_take_the_next_snapshot_at_one_step_even_if_a_body_was_clean_on_some_only(
    tmp_path: Path, memory: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose body was clean cannot count on its own interval: taking one is a collective."""
    given, own = memory(-1), Ranks.all_true
    script = Script(tmp_path, checkpoint_every=None, snapshot_every=3)
    script.train(20, until=2)
    for step, has_unclean_peer in ((3, True), (4, False), (5, False), (6, False), (7, False)):
        monkeypatch.setattr(
            Ranks,
            "all_true",
            lambda self, value, bad=has_unclean_peer: own(self, value and not bad),
        )
        script.checkpointer.step(step)
        script.checkpointer.wait()
        assert max(held(given)) == {5: 4, 7: 6}.get(step, step)


@pytest.mark.parametrize("is_clean", [True, False])
def test_ranks_take_the_next_snapshot_at_one_step_if_training_goes_on_after_its_end(
    tmp_path: Path, memory: Given, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    """Only some ranks have the snapshot of the last step: its body was not clean on the others."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = memory(-1, saver=SaverLink(ours))
    monkeypatch.setattr(SaverLink, "save", lambda *_: True)
    script = Script(tmp_path, checkpoint_every=100, snapshot_every=3)
    script.train(20, until=2)

    def end(bodies: Bodies) -> bool:
        bodies.is_clean = is_clean
        return is_clean

    with monkeypatch.context() as at_end:
        at_end.setattr(Bodies, "end", end)
        at_end.setattr(Ranks, "all_true", lambda *_: False)
        script.checkpointer.step(3)
    script.checkpointer.finish(3)
    for step in (4, 5, 6):
        script.checkpointer.step(step)
        script.checkpointer.wait()
        assert held(given) - {3} == ({6} if step == 6 else set())
    theirs.close()


@pytest.mark.parametrize("number", range(3))
def test_intervals_are_the_same_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise a rank would call collectives that others do not call."""

    def differing(_: Ranks, *own: int) -> list[list[int]]:
        return [[one + (index == number) for index, one in enumerate(own)], [*own]]

    def second(ranks: Ranks) -> None:
        ranks.group, ranks.rank, ranks.size = None, 1, 2

    monkeypatch.setattr(Ranks, "__init__", second)
    monkeypatch.setattr(Ranks, "all_gather", differing)
    options: dict[str, Any] = {"snapshot_every": 5, "checkpoint_every": 5, "verify_every": 5}
    words = f"invalid value 5 for {[*options][number]} on rank 1: expected that of rank 0"
    with pytest.raises(ValueError, match=words):
        Script(tmp_path, **options)


def test_a_rank_without_snapshots_takes_part_in_plans(
    tmp_path: Path, memory: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own copy has failed twice, while another rank asks for metadata."""
    gathered: list[Any] = []

    def gather(_: Ranks, plan: Any) -> list[Any]:
        gathered.append(plan)
        return [plan]

    monkeypatch.setattr(Ranks, "gather", gather)
    memory(-1)
    script = Script(tmp_path, checkpoint_every=None)
    script.train(9, until=3)
    snapshots = script.checkpointer._snapshots
    for _ in range(2):
        snapshots._error = "no memory"
        snapshots.wait_for_copy()
    assert not snapshots.is_enabled
    snapshots.apply_reports(StepReport(lacks_plan=1))
    assert gathered == [None]


@pytest.mark.parametrize(("why", "expected", "goes_on"), [(1, {4, 6}, True), (2, {4}, False)])
def test_what_another_rank_has_not_is_forgotten(
    tmp_path: Path,
    memory: Given,
    mesh: object,
    monkeypatch: pytest.MonkeyPatch,
    why: int,
    expected: set[int],
    goes_on: bool,
) -> None:
    given = memory(-1)
    script = Script(tmp_path, checkpoint_every=None)
    checkpointer = script.checkpointer
    snapshots = checkpointer._snapshots
    assert snapshots._own is not None
    snapshots._replicas = Replicas(checkpointer._ranks, snapshots._own, [])
    checkpointer.restore()

    whys = iter((0, 0, 0, 0, why, 0))
    monkeypatch.setattr(
        Ranks, "begin_maximum", lambda _, *own: PendingMaximum(None, (*own[:-1], next(whys)))
    )
    for step in range(1, 7):
        checkpointer.step(step)
    checkpointer.wait()
    assert held(given) == expected
    assert (snapshots._replicas is not None) == goes_on


@pytest.mark.parametrize("is_sharded", [False, True])
def test_ranks_exchange_replicas_all_or_none_even_if_the_copy_of_one_failed(
    tmp_path: Path,
    memory: Given,
    mesh: object,
    monkeypatch: pytest.MonkeyPatch,
    is_sharded: bool,
) -> None:
    """An exchange of a state that others do not send would never end."""
    exchanged: list[object] = []
    monkeypatch.setattr(Replicas, "_exchange", lambda _, *what: exchanged.append(what))
    memory(-1)
    script = Script(tmp_path, checkpoint_every=None, local=["model"] if is_sharded else [])
    script.train(9, until=1)
    snapshots = script.checkpointer._snapshots
    assert snapshots._own is not None
    monkeypatch.setattr(LateCopy, "run", lambda _: False)
    snapshots._replicas = Replicas(script.checkpointer._ranks, snapshots._own, [])
    script.checkpointer.step(2)
    script.checkpointer.wait()
    assert not snapshots.has(2)
    assert exchanged == ([(2, None)] if is_sharded else [])


def given_notice(monkeypatch: pytest.MonkeyPatch, *, saves: int) -> memoryview:
    """Return the page of notices of an agent, which the next Checkpointer maps."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, preemption.PAGE_BYTES)
    words = memoryview(mmap.mmap(fd, preemption.PAGE_BYTES)).cast("Q")
    words[preemption.SAVES] = saves
    notice = Notice(0, fd, 0)
    os.close(fd)
    monkeypatch.setattr(checkpointer, "find_notice", lambda *_, **__: notice)
    return words


@pytest.mark.parametrize(
    ("is_wanted", "every", "expected"),
    [(1, 100, {3}), (0, 100, set()), (1, None, set()), (1, 3, {3})],
)
@pytest.mark.parametrize("has_memory", [True, False])
def test_what_is_on_storage_before_all_nodes_are_gone(
    tmp_path: Path,
    memory: Given,
    monkeypatch: pytest.MonkeyPatch,
    is_wanted: int,
    every: int | None,
    expected: set[int],
    has_memory: bool,
) -> None:
    if has_memory:
        memory(-1)
    words = given_notice(monkeypatch, saves=is_wanted)
    script = Script(tmp_path, checkpoint_every=every)
    script.checkpointer.restore()
    for step in range(1, 5):
        if step == 2:  # the order comes; its time is over, so that nothing is waited for
            words[preemption.IS_WHOLE] = words[preemption.UNTIL_NS] = 1
        script.checkpointer.step(step)
        found = {int(name[5:]) for name in os.listdir(tmp_path) if name.startswith("step-")}
        assert found == (expected if step >= 3 else set())


@pytest.mark.parametrize(("failures", "reported"), [(0, [3]), (2, [3]), (9, [])])
def test_a_drain_reports_what_is_on_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, reported: list[int]
) -> None:
    saved, attempts, save = list[int](), list[int](), CheckpointFolder.save

    def fails_at_first(folder: CheckpointFolder, step: int, state: Any) -> str | None:
        attempts.append(step)
        return "no space left" if len(attempts) <= failures else save(folder, step, state)

    monkeypatch.setattr(coordination, "_RETRIES_S", (0, 0))
    monkeypatch.setattr(CheckpointFolder, "save", fails_at_first)
    words = given_notice(monkeypatch, saves=1)
    report = Notice.report_saved

    def noted_report(notice: Notice, step: int) -> None:
        saved.append(step)
        report(notice, step)

    monkeypatch.setattr(Notice, "report_saved", noted_report)
    script = Script(tmp_path, checkpoint_every=100)
    script.train(9, until=1)
    words[preemption.IS_WHOLE] = words[preemption.UNTIL_NS] = 1
    for step in range(2, 7):
        script.checkpointer.step(step)
    assert attempts == [3] * min(failures + 1, 3)  # the notice is obeyed once
    assert saved == reported


@pytest.mark.parametrize("has_agent", [True, False])
def test_ranks_save_together_if_only_another_sees_that_more_is_needed(
    tmp_path: Path, memory: Given, monkeypatch: pytest.MonkeyPatch, has_agent: bool
) -> None:
    """The agent of this rank has not informed it yet, or does not answer."""
    answers, begin, all_true = list[bool](), Ranks.begin_maximum, Ranks.all_true
    memory(-1)
    given_notice(monkeypatch, saves=1)
    if not has_agent:
        monkeypatch.setattr(checkpointer, "find_notice", lambda *_, **__: None)
    script = Script(tmp_path, checkpoint_every=100)
    script.train(9, until=1)
    need = StepReport._fields.index("notice")
    monkeypatch.setattr(
        Ranks,
        "begin_maximum",
        lambda ranks, *own: begin(ranks, *own[:need], preemption.SNAPSHOT, *own[need + 1 :]),
    )
    script.checkpointer.step(2)
    script.checkpointer.wait()  # its thread sends the report
    monkeypatch.setattr(Ranks, "begin_maximum", begin)

    def all_but_the_fourth(ranks: Ranks, is_true: bool) -> bool:
        answers.append(all_true(ranks, is_true and len(answers) != 3))
        return answers[-1]

    # Training can resume, state is saved, other nodes hold it; but a rank needs more.
    monkeypatch.setattr(Ranks, "all_true", all_but_the_fourth)
    script.checkpointer.step(3)
    assert answers[:4] == [True, True, True, False]
    assert os.listdir(tmp_path / "step-00000003")


def test_a_wait_after_each_step_hides_no_report(
    tmp_path: Path, memory: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports say that a time is over, and that a notice has come."""
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    memory(-1)
    words = given_notice(monkeypatch, saves=1)
    script = Script(tmp_path, checkpoint_every="10s")
    script.checkpointer.restore()
    found: list[str] = []
    for step in range(1, 8):
        if step == 6:
            words[preemption.IS_WHOLE] = words[preemption.UNTIL_NS] = 1
        now_s[0] += 6
        script.checkpointer.step(step)
        script.checkpointer.wait()
        found += [name for name in os.listdir(tmp_path) if name not in ("latest", *found)]
    assert found == [f"step-{number:08}" for number in (3, 6, 7)]


def test_report_of_a_step_comes_before_the_drain(
    tmp_path: Path, memory: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks must call collectives in one order, however long their copies take."""
    exchanges, gates = list[str](), list[threading.Event]()
    begin, wait, exchange = Background.begin, Background.wait, PendingMaximum.__init__

    def begin_late(self: Background, function: Callable[[], object]) -> None:
        gate = threading.Event()
        gates.append(gate)
        begin(self, lambda: (gate.wait(60), function()))

    def release(self: Background) -> None:
        for gate in gates:
            gate.set()
        wait(self)

    def noted(self: PendingMaximum, *arguments: Any) -> None:
        exchanges.append(threading.current_thread().name.rpartition("_")[0])
        exchange(self, *arguments)

    memory(-1)
    words = given_notice(monkeypatch, saves=1)
    script = Script(tmp_path, checkpoint_every=100)
    script.train(2, until=1)
    words[preemption.IS_WHOLE] = words[preemption.UNTIL_NS] = 1
    script.checkpointer.step(2)
    monkeypatch.setattr(Background, "begin", begin_late)
    monkeypatch.setattr(Background, "wait", release)
    monkeypatch.setattr(PendingMaximum, "__init__", noted)
    script.checkpointer.step(3)
    assert exchanges[0] == "ft-run-snapshots"


@pytest.mark.parametrize(("has_memory", "expected"), [(True, set()), (False, {3})])
def test_what_is_on_storage_before_the_number_of_ranks_changes(
    tmp_path: Path,
    memory: Given,
    monkeypatch: pytest.MonkeyPatch,
    has_memory: bool,
    expected: set[int],
) -> None:
    """State that is the same on all ranks stays in memory."""
    if has_memory:
        memory(-1)
    words = given_notice(monkeypatch, saves=1)
    script = Script(tmp_path, checkpoint_every=100)
    script.checkpointer.restore()
    for step in range(1, 5):
        if step == 2:
            words[preemption.RESIZES] = words[preemption.UNTIL_NS] = 1
        script.checkpointer.step(step)
    assert {int(name[5:]) for name in os.listdir(tmp_path) if name.startswith("step-")} == expected


def test_a_checkpoint_is_resumed_from_without_ft_run(
    tmp_path: Path, undisturbed: list[Any]
) -> None:
    Script(tmp_path, checkpoint_every=2, keep=2).train(10, until=7)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-00000004", "step-00000006"]
    script = Script(tmp_path, checkpoint_every=2, keep=2).train(10)
    assert (script.resumed_at, script.everything()) == (6, undisturbed)
    assert (tmp_path / "latest").read_text() == "step-00000010\n"


@pytest.mark.parametrize("way", ["snapshot", "checkpoint"])
def test_gradients_of_before_do_not_matter(
    tmp_path: Path, memory: Given, undisturbed: list[Any], way: str
) -> None:
    memory(-1)
    every = 1 if way == "checkpoint" else None
    Script(tmp_path, checkpoint_every=every).train(10, until=6)
    memory(6 if way == "snapshot" else -1)
    script = Script(tmp_path, checkpoint_every=every)
    given = torch.ones(3, 4)
    script.model[0].weight.grad = given
    assert script.checkpointer.restore() == 6
    assert script.model[0].weight.grad is given
    assert script.train(10).everything() == undisturbed


def test_the_newer_of_snapshot_and_checkpoint(
    tmp_path: Path, memory: Given, undisturbed: list[Any]
) -> None:
    memory(-1)
    Script(tmp_path, checkpoint_every=4).train(10, until=6)
    memory(5)
    assert Script(tmp_path, checkpoint_every=4).train(10, until=5).resumed_at == 5
    shutil.copytree(tmp_path / "step-00000004", tmp_path / "step-00000006")
    memory(5)
    assert Script(tmp_path, checkpoint_every=4).train(10, until=6).resumed_at == 6


def gone(folder: Path) -> str:
    """Have a folder's storage answer nothing but an error; return what is said of it."""
    folder.symlink_to(folder)
    return f"the checkpoints in {folder} cannot be listed: [Errno 40] Too many levels of symbolic"


def test_a_storage_that_is_gone_takes_no_snapshot_with_it(
    tmp_path: Path, memory: Given, undisturbed: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    memory(-1)
    Script(tmp_path / "kept", checkpoint_every=4).train(10, until=6)
    shutil.rmtree(tmp_path / "kept")
    words = gone(tmp_path / "kept")
    capfd.readouterr()
    memory(6)
    script = Script(tmp_path / "kept", checkpoint_every=None)
    assert script.train(10).everything() == undisturbed
    assert script.resumed_at == 6
    first, second = logged(capfd)
    assert first.startswith(words)
    assert second == "resuming from the snapshot of step 6"


def test_a_storage_that_is_gone_is_no_fresh_start(tmp_path: Path, memory: Given) -> None:
    words = gone(tmp_path / "kept")
    for step in (-1, 6):  # without a snapshot, and with one of another model
        memory(-1)
        Script(tmp_path, checkpoint_every=None).train(10, until=6)
        memory(step)
        with pytest.raises(RuntimeError, match=re.escape(words)):
            Script(tmp_path / "kept", width=4, checkpoint_every=None).train(10)


def test_a_checkpoint_is_one_of_dcp(tmp_path: Path) -> None:
    script = Script(tmp_path, checkpoint_every=10).train(10)
    fresh = Script(tmp_path / "other")
    state = {"model": fresh.model.state_dict()}
    with pytest.warns(UserWarning, match="single process"):
        load(state, storage_reader=FileSystemReader(tmp_path / "step-00000010"))
    assert str(state["model"]) == str(script.model.state_dict())


@pytest.mark.parametrize("way", ["snapshot", "checkpoint"])
def test_an_optimizer_without_state_is_left_without(
    tmp_path: Path, memory: Given, way: str
) -> None:
    memory(-1)
    for _ in range(2):
        script = Script(tmp_path, checkpoint_every=1 if way == "checkpoint" else None)
        script.checkpointer.restore()
        script.checkpointer.step(1)
        assert script.optimizer.state_dict()["state"] == {}
        assert all(p.grad is None for p in script.model.parameters())
        memory(1 if way == "snapshot" else -1)


def test_no_optimizer_steps_to_be_restored(
    tmp_path: Path, memory: Given, undisturbed: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    memory(-1)
    Script(tmp_path, checkpoint_every=None).train(10, until=6)
    memory(6)
    script, stepped = Script(tmp_path, checkpoint_every=None), []
    hook = script.optimizer.register_step_pre_hook(lambda *_: stepped.append(1))
    assert (script.checkpointer.restore(), stepped) == (6, [])
    assert logged(capfd) == ["resuming from the snapshot of step 6"]
    hook.remove()
    assert script.train(10).everything() == undisturbed


def test_another_optimizer_without_a_checkpoint_starts_from_step_0(
    tmp_path: Path, memory: Given, capfd: pytest.CaptureFixture[str]
) -> None:
    memory(-1)
    Script(tmp_path, checkpoint_every=None).train(10, until=6)
    memory(6)
    script = Script(tmp_path, momentum=0.9, checkpoint_every=None)
    assert script.checkpointer.restore() == 0
    mismatch, start = logged(capfd)
    assert mismatch.startswith("the snapshot of step 6 does not match the script: 'optimizer' is")
    assert start == "no usable snapshot or checkpoint: starting from step 0"
    assert script.optimizer.state_dict()["state"] == {}


@pytest.mark.parametrize("kind", ["local", "sharded", "equal"])
def test_restart_reports_lost_shards_once(
    tmp_path: Path,
    memory: Given,
    new_process: Callable[[], None],
    mesh: DeviceMesh,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    """Not in the first round, and not if a later training of the same process starts."""
    lines = []
    for is_first_round in (True, False):
        new_process()
        for folder in ("first", "second"):
            memory(-1, is_first_round=is_first_round)
            model = nn.Linear(2, 2)
            if kind == "sharded":
                fully_shard(model, mesh=mesh)
            state, local = {"model": model}, ["model"] if kind == "local" else []
            checkpointer = Checkpointer(
                tmp_path / folder, state, local=local, seed=1, checkpoint_every=None
            )
            assert [*checkpointer.steps(2)] == [0, 1]
            lines += [
                line
                for line in logged(capfd)
                if "snapshot that fits all 1 ranks: starting from" in line
            ]
    assert len(lines) == (0 if kind == "equal" else 1)


def test_another_model_resumes_from_the_checkpoint(
    tmp_path: Path, memory: Given, capfd: pytest.CaptureFixture[str]
) -> None:
    memory(-1)
    Script(tmp_path / "other", width=4, checkpoint_every=1).train(10, until=2)
    kept = tmp_path / "kept"
    memory(-1)
    Script(kept, checkpoint_every=None).train(10, until=6)
    (tmp_path / "other").rename(kept)
    capfd.readouterr()
    memory(6)
    script = Script(kept, width=4, checkpoint_every=None)
    assert script.train(10, until=2).resumed_at == 2
    assert logged(capfd) == [
        "the snapshot of step 6 does not match the script: model.0.weight is float32 [3, 4] in the "
        "snapshot, float32 [4, 4] in the script",
        "resuming from the checkpoint of step 2",
    ]
    memory(6)  # and it is gone, so that no rank resumes from it later
    shutil.rmtree(kept)
    assert Script(kept, checkpoint_every=None).train(10, until=0).resumed_at == 0
    assert script.optimizer.state_dict()["state"]


def test_without_memory_there_are_checkpoints(
    tmp_path: Path,
    memory: Given,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("ft_run.training.checkpoints.snapshot_store.available", lambda: 100)
    said: list[int] = []

    def begin(_: Ranks, *own: int) -> PendingMaximum:
        said.append(own[-1])
        return PendingMaximum(None, own)

    monkeypatch.setattr(Ranks, "begin_maximum", begin)
    before = own_descriptors()
    memory(-1)
    script = Script(tmp_path, checkpoint_every=3).train(10, until=4)
    assert not script.checkpointer._snapshots.is_enabled
    assert own_descriptors() <= before  # it was given back; those of others may close meanwhile
    assert set(said) == {2}  # the others are told
    lost, written = logged(capfd)
    assert lost == (
        "no snapshot of step 1: not enough memory for 2 copies of the state of 1 rank(s): 0.00 GB "
        "more needed, 0.00 GB available; snapshots are disabled, checkpoints only"
    )
    assert written.startswith("checkpoint of step 3 saved: ")
    memory(-1)
    assert Script(tmp_path).train(10, until=3).resumed_at == 3


def test_a_thousand_snapshots_leave_nothing_behind(tmp_path: Path, memory: Given) -> None:
    """Copied while training goes on: no thread, hook, descriptor or object stays of one."""
    memory(-1)
    script = Script(tmp_path, checkpoint_every=None)
    script.checkpointer.restore()

    def take(*steps: int) -> tuple[set[tuple[int, str]], int, int, int]:
        for step in steps:
            with torch.no_grad():
                script.optimizer.step()
            script.checkpointer.step(step)
        script.checkpointer.wait()
        gc.collect()
        return own_descriptors(), threading.active_count(), len(hooks), len(gc.get_objects())

    script.train(3)
    files, threads, waiters, objects = take(*range(4, 14))
    assert script.checkpointer._snapshots._background is not None
    after = take(*range(14, 1014))
    assert after[0] <= files
    assert after[1] <= threads  # of other tests, some go meanwhile
    assert after[2] <= waiters
    assert after[3] < objects + 1000


def test_what_a_crash_left_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of another job only when nothing was written to them for an hour."""
    for name in (".step-00000004.writing", ".step-00000002.removing", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / ".latest.writing").touch()
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        os.utime(path, (0, time.time() - OLD_S - 60))
    for name in ("new", f"{tag_of('this job')}-1"):
        (tmp_path / f".step-00000004.{name}.writing").mkdir()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this job")
    assert Script(tmp_path, checkpoint_every=None).train(1).resumed_at == 0
    assert sorted(os.listdir(tmp_path)) == [".step-00000004.new.writing", "mine"]


@contextmanager
def small(folder: Path, options: str) -> Iterator[None]:
    """Have a folder be a file system of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no room in a file system."""
    with suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize(
    ("name", "error"),
    [("file/folder", "[Errno 20] Not a directory: "), ("/proc/nope", "[Errno 2] No such file")],
)
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, name: str, error: str) -> None:
    (tmp_path / "file").touch()
    words = f"checkpoints cannot be written to {tmp_path / name}: {error}"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        Script(tmp_path / name, checkpoint_every=2)
    assert Script(tmp_path / name, checkpoint_every=None).train(3).resumed_at == 0


def test_a_restart_does_not_look_whether_the_folder_can_be_written(
    tmp_path: Path, memory: Given
) -> None:
    """It has a snapshot to go on from, and the storage may come back."""
    kept = tmp_path / "parent" / "kept"
    kept.parent.mkdir()
    memory(-1)
    Script(kept, checkpoint_every=None).train(10, until=6)
    kept.parent.rmdir()
    kept.parent.touch()
    memory(6, is_first_round=False)
    assert Script(kept, checkpoint_every=100).train(8, until=7).resumed_at == 6


@pytest.mark.parametrize("offered", [-1, 6])
def test_restart_without_usable_snapshot_checks_the_folder(
    tmp_path: Path, memory: Given, offered: int
) -> None:
    memory(-1)
    Script(tmp_path, checkpoint_every=None).train(10, until=6)
    (tmp_path / "file").touch()
    memory(offered, is_first_round=False)
    with pytest.raises(RuntimeError, match="checkpoints cannot be written to"):
        Script(tmp_path / "file/folder", width=4, checkpoint_every=100).train(8)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it was waited for another try."""
    found: list[float] = []
    monkeypatch.setattr("ft_run.training.checkpoints.coordination.time.sleep", found.append)
    return found


@pytest.mark.root
@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize(
    ("full", "kept"),
    [({2}, {4, 5}), ({4}, {2, 5}), ({5}, {2, 4}), ({2, 4, 5}, set())],
)
def test_a_disk_that_is_full(
    tmp_path: Path,
    memory: Given,
    pauses: list[float],
    capfd: pytest.CaptureFixture[str],
    full: set[int],
    kept: set[int],
    has_memory: bool,
) -> None:
    """In the middle one line says so; the last checkpoint ends the script where it is lost."""
    if has_memory:
        memory(-1)
    lost = "the checkpoint of step 5 could not be written to {}: [Errno 28] No space left on device"
    with small(tmp_path, "size=256k"):
        script = Script(tmp_path, checkpoint_every=2, width=20)
        error = ""
        try:
            for number in script.checkpointer.steps(5):
                (tmp_path / "filler").unlink(missing_ok=True)
                if {number + 1, 5 if number == 4 else 0} & full:
                    fill(tmp_path)
        except RuntimeError as found:
            error = str(found)
        said = capfd.readouterr().err
        assert {int(path.name[5:]) for path in tmp_path.glob("step-*")} == kept
        assert error == (lost.format(tmp_path) if 5 in full else "")
        assert pauses == ([1, 2, 4, 8] if 5 in full else [])
        for step in {2, 4, 5} - full:
            assert said.count(f" ft-run checkpoint of step {step} saved: ") == 1
        for step in full:
            tries = said.count(f"checkpoint of step {step} not saved: [Errno 28] No space")
            assert tries == (5 if step == 5 else 1)
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".step")]


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A folder that is reached by a URL, and the file that has its writes wait."""
    monkeypatch.syspath_prepend(ODD)
    odd = importlib.import_module("odd_storage").OddFileSystem
    fsspec.register_implementation("odd", odd, clobber=True)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / ".odd").touch()
    control = tmp_path / "odd" / "control"
    yield f"odd://{tmp_path}/odd", control
    control.unlink(missing_ok=True)
    for thread in threading.enumerate():
        if thread.name == "ft-run-storage":
            thread.join()


def test_a_storage_that_hangs_at_the_end_is_not_waited_for_for_ever(
    hanging: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    url, control = hanging
    monkeypatch.setattr(storage, "_FIRST_LINE_S", 0.2)
    script = Script(url, checkpoint_every=100, save_timeout="1s")
    control.write_text("hang")
    words = f"the checkpoint of step 3 could not be written to {url}: "
    with pytest.raises(RuntimeError, match=f"{re.escape(words)}no response from the storage for 1"):
        script.train(3)
    said, lost = logged(capfd)  # it is not tried again: it would hang again
    waiting = f"waiting for the checkpoint of step 3 to be written to {url} "
    assert said.startswith(waiting), said
    until = said.removeprefix(waiting)
    assert re.fullmatch(r"\(0\.\d s so far, gives up after 1 s without progress\)", until), until
    assert lost.startswith("checkpoint of step 3 not saved: no response from the")
    control.unlink()
    assert script.checkpointer.save(3)
    script.checkpointer.wait()
    assert Script(url, checkpoint_every=100).train(3).checkpointer.restore() == 3


def test_a_saver_that_hangs_at_the_end_is_not_waited_for_for_ever(
    tmp_path: Path,
    memory: Given,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It gets on for a while, and then it says nothing any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = memory(-1, saver=SaverLink(ours))
    waits, looked = SaverLink.wait, []

    def wait(self: SaverLink, limit_s: float | None = None) -> bool:
        looked.append(limit_s)
        if len(looked) <= 4:
            page.tick(given)
        return waits(self, 0.3)

    monkeypatch.setattr(SaverLink, "wait", wait)
    script = Script(tmp_path, checkpoint_every=100, save_timeout="1s")
    words = f"the checkpoint of step 3 could not be written to {tmp_path}: no response from"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        script.train(3)
    assert len(looked) > 5
    assert pauses == []
    before = len(looked)
    with pytest.raises(RuntimeError, match=re.escape(words)):
        script.checkpointer.wait()  # nor is it waited for once more
    assert len(looked) == before
    theirs.send(page.SAVED.pack(*page.SAVE.unpack(theirs.recv(100))))
    assert script.checkpointer.save(4)
    for end in (ours, theirs):
        end.close()


@pytest.mark.parametrize("changes", [None, "weights", "values"])
def test_save_writes_current_state(
    tmp_path: Path, memory: Given, new_process: Callable[[], None], changes: str | None
) -> None:
    """In the background if it is that of the snapshot, which never changes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = memory(-1, saver=SaverLink(ours))
    script = Script(tmp_path, checkpoint_every=None).train(3)
    weight: Any = script.model[0].weight
    before, expected = held(given), weight.clone()
    with torch.no_grad():
        if changes == "weights":
            weight[0, 0] = 7.25
        elif changes == "values":
            script.sampler.seen["newest"] = "averaged"
    assert script.checkpointer.save(3)
    theirs.setblocking(False)
    if changes is None:
        assert page.SAVE.unpack(theirs.recv(100))[2] == 3
        assert list(tmp_path.glob("step-*")) == []
    else:
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        found = Script(tmp_path, snapshot_every=None)
        assert found.checkpointer.restore() == 3
        assert str(found.everything()) == str(script.everything())
    assert held(given) == before
    for end in (ours, theirs):
        end.close()
    new_process()
    memory(3)
    resumed = Script(tmp_path, checkpoint_every=None)
    assert resumed.checkpointer.restore() == 3
    weight = resumed.model[0].weight
    assert torch.equal(weight, expected)
    assert resumed.sampler.seen["newest"] != "averaged"


@pytest.mark.root
def test_a_disk_that_is_full_for_a_while_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ft_run.training.checkpoints.coordination.time.sleep",
        lambda _: (tmp_path / "filler").unlink(),
    )
    with small(tmp_path, "size=256k"):
        for _ in Script(tmp_path, checkpoint_every=2).checkpointer.steps(1):
            fill(tmp_path)
        assert (tmp_path / "latest").read_text() == "step-00000001\n"


@pytest.mark.root
def test_the_reason_is_that_of_the_operating_system(tmp_path: Path) -> None:
    """Where the disk is full in the middle of a tensor, what torch raises in the end tells none."""
    with small(tmp_path, "size=64k"):
        checkpointer = Script(tmp_path, checkpoint_every=2, width=20_000).checkpointer
        assert not checkpointer.save(1)
        with pytest.raises(RuntimeError, match=r"\[Errno 28\] No space left on device"):
            checkpointer.wait()


def test_the_last_checkpoint_stays_where_the_next_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Script(tmp_path, checkpoint_every=2).train(2)
    monkeypatch.setattr(os, "rename", lambda *_: os.open(tmp_path / "x" / "y", os.O_RDONLY))
    assert not Script(tmp_path, checkpoint_every=2, keep=1).checkpointer.save(4)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-00000002"]
    assert "checkpoint of step 4 not saved: " in capfd.readouterr().err


def test_checkpoint_is_visible_before_the_older_one_of_its_step_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    store = LocalStorage(tmp_path)
    for words in (b"older", b"newer"):
        draft = store.draft(2)
        store.begin(draft)
        store.put(draft, "words", of_bytes(words))
        with suppress(KilledError):
            store.publish(2, draft, keep=1)
        monkeypatch.setattr(shutil, "rmtree", killed)
    assert store.steps() == [2]
    assert store.read(2, "words") == b"newer"


def test_a_checkpoint_that_cannot_be_read_is_no_fresh_start(tmp_path: Path) -> None:
    Script(tmp_path, checkpoint_every=2).train(2)
    (tmp_path / "step-00000002" / "__0_0.distcp").unlink()
    with pytest.raises(RuntimeError, match=r"step-00000002 cannot be loaded: .*No such file"):
        Script(tmp_path).train(4)


def test_names_that_a_checkpoint_lacks_or_only_has_are_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def resumed(**objects: Any) -> list[str]:
        state = {"model": nn.Linear(2, 2), **objects}
        for _ in Checkpointer(tmp_path, state, snapshot_every=None, position="step").steps(2):
            pass
        return [line for line in logged(capfd) if "lacks" in line or "not in" in line]

    assert resumed(stats={}, sampler=Sampler()) == []
    assert resumed(stats={}, sampler=Sampler()) == []
    at = f"checkpoint {tmp_path}/step-00000002"
    assert resumed(sampler=Sampler()) == [f"{at} has 'stats', not in the script's state"]
    found = resumed(progress={}, best=[], sampler=Sampler())
    assert found == [
        f"{at} lacks 'best', 'progress', not restored; it has 'stats', not in the script's state"
    ]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    Script(tmp_path, checkpoint_every=2).train(2)
    with pytest.raises(RuntimeError, match=r"cannot be loaded: .*ize mismatch"):
        Script(tmp_path, width=4).train(4)


MODEL = nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"keep": 0}, "invalid value 0 for keep: expected a whole number >= 1"),
        ({"snapshot_every": 0}, "invalid value 0 for snapshot_every: expected a number of steps"),
        ({"snapshot_every": True}, "invalid value True for snapshot_every: expected"),
        (
            {"checkpoint_every": "10 minutes"},
            "invalid value '10 minutes' for checkpoint_every: expected",
        ),
        ({"checkpoint_every": "0s"}, "invalid value '0s' for checkpoint_every: expected"),
        (
            {"save_timeout": "0s"},
            "invalid value '0s' for save_timeout: expected a time, e.g. '30s'",
        ),
        ({"state": {}}, "invalid value {} for state: expected"),
        ({"state": {"a.b": MODEL}}, "invalid name 'a.b' in state: expected"),
        (
            {"state": {"step": 3}},
            r"type int for state\['step'\]: expected an object with state_dict\(\)",
        ),
    ],
)
def test_bad_arguments(tmp_path: Path, given: dict[str, Any], error: str) -> None:
    arguments: dict[str, Any] = {"state": {"model": MODEL}, **given}
    with pytest.raises((ValueError, TypeError), match=error):
        Checkpointer(tmp_path, **arguments)


def test_it_is_made_after_init_process_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"before torch.distributed.init_process_group\(\)"):
        Checkpointer(tmp_path, {"model": MODEL})


def test_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("ft_run.training.checkpointer.time.monotonic", lambda: clock[0])
    script = Script(tmp_path, checkpoint_every="2min")
    script.checkpointer.restore()
    for step in range(1, 9):
        clock[0] += 50.0
        script.checkpointer.step(step)
    # It is over after steps 3 and 7, and done with the next.
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-00000004", "step-00000008"]


def test_second_live_checkpointer_with_snapshots_is_refused(tmp_path: Path, memory: Given) -> None:
    memory(-1)
    red = Script(tmp_path / "red", checkpoint_every=None)
    memory(-1)
    blue = Script(tmp_path / "blue", checkpoint_every=None)  # one may be created for later
    best = Script(tmp_path / "best", snapshot_every=None)
    assert red.checkpointer.restore() == 0
    assert best.checkpointer.restore() == 0
    for act in (blue.checkpointer.restore, lambda: blue.checkpointer.step(1)):
        with pytest.raises(ValueError, match=r"/blue, while the one for .*/red is in use"):
            act()
    red.train(3)
    blue.train(2)
    blue.checkpointer.step(3)  # a later step revives it
    with pytest.raises(ValueError, match=r"/red, while the one for .*/blue is in use"):
        red.checkpointer.step(4)
    blue.checkpointer.wait()
    red.checkpointer.step(4)
    for number in red.checkpointer.steps(9):
        if number == 6:
            break
    blue.checkpointer.save(3)
    assert (tmp_path / "blue/step-00000003").exists()


@pytest.mark.parametrize("dies_in", ["first", "second"])
def test_each_of_two_phases_resumes_from_its_own_snapshot(
    tmp_path: Path, memory: Given, dies_in: str
) -> None:
    expected = [Script(tmp_path / "x", checkpoint_every=None).train(6).everything()]
    expected.append(Script(tmp_path / "y", width=5, checkpoint_every=None).train(4).everything())
    view = memory(-1)
    first = Script(tmp_path / "first", checkpoint_every=100).train(6, until=3)
    step = 3
    if dies_in == "second":
        first.train(6)
        memory(-1)
        Script(tmp_path / "second", width=5, checkpoint_every=100).train(4, until=2)
        step = 2
    entries = [entry for n in range(page.BUFFERS) if (entry := page.read(view, n))]
    newest = max(entries, key=lambda entry: entry.generation)
    assert newest.step == step
    memory(step, owner=newest.owner)
    first = Script(tmp_path / "first", checkpoint_every=100).train(6)
    memory(step, owner=newest.owner)
    second = Script(tmp_path / "second", width=5, checkpoint_every=100).train(4)
    assert [first.everything(), second.everything()] == expected
    resumed = {"first": (3, 0), "second": (-1, 2)}
    assert (first.resumed_at, second.resumed_at) == resumed[dies_in]


def test_snapshot_of_another_directory_is_reported(
    tmp_path: Path, memory: Given, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    view = memory(-1, saver=SaverLink(ours))
    Script(tmp_path / "monday", checkpoint_every=None).train(10, until=4)
    (entry, *_) = [entry for n in range(page.BUFFERS) if (entry := page.read(view, n))]
    capfd.readouterr()
    memory(4, owner=entry.owner)
    Script(tmp_path / "tuesday", checkpoint_every=None).train(10, until=0)
    assert logged(capfd) == [
        f"no snapshot for {tmp_path}/tuesday: the one in memory is for {tmp_path}/monday; to "
        "resume after a restart, pass the same directory in each start"
    ]
    theirs.close()
