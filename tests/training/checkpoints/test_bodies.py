"""A body that changes gradients and steps no optimizer is no point to resume from."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.tests.harness.log_lines import logged
from ft_run.training import Checkpointer, checkpointer
from ft_run.training.checkpoints.coordination import Bodies
from ft_run.training.worker import preemption
from ft_run.training.worker.preemption import Notice
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import SGD, Adam

Given = Callable[..., memoryview]
Do = Callable[["Training"], None]


class Training:
    """Two networks, as of a GAN, each with its optimizer, and a scaler."""

    def __init__(self) -> None:
        self.one, self.other = nn.Linear(2, 1), nn.Linear(2, 1)
        self.of_one = SGD(self.one.parameters(), lr=0.1)
        self.of_other = SGD(self.other.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def backward(self, *, factor: float = 1.0) -> None:
        """Add to the gradients of both networks."""
        loss = self.other(torch.ones(1, 2)).sum() * self.one(torch.ones(1, 2)).sum()
        (loss * factor).backward()


def nothing(_: Training) -> None:
    """E.g. an evaluation."""


def gathers(training: Training) -> None:
    training.backward()


def steps(training: Training) -> None:
    training.of_one.zero_grad()
    training.backward()
    training.of_one.step()


def steps_the_other(training: Training) -> None:
    training.backward()
    training.of_other.step()
    training.of_other.zero_grad()


def gathers_and_forgets(training: Training) -> None:
    training.backward()
    training.of_one.zero_grad()
    training.of_other.zero_grad()


def leaves_out(training: Training) -> None:
    """A step that the scaler leaves out."""
    training.of_one.zero_grad()
    training.scaler.scale(training.one(torch.ones(1, 2)).sum() * float("inf")).backward()
    before = training.one.weight.detach().clone()
    training.scaler.step(training.of_one)
    training.scaler.update()
    assert torch.equal(before, training.one.weight)


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ([nothing, steps, steps], [True, True, True]),
        ([gathers, gathers, steps, gathers, steps], [False, False, True, False, True]),
        ([steps, nothing, nothing, steps], [True] * 4),  # gradients stay, but do not change
        ([steps, steps_the_other, steps, nothing], [True] * 4),
        ([gathers_and_forgets, steps], [True, True]),
        ([leaves_out, steps, leaves_out, nothing, gathers], [True, True, True, True, False]),
    ],
    ids=lambda value: "-".join(str(getattr(one, "__name__", one)) for one in value),
)
def test_body_is_judged_as_a_whole(bodies: list[Do], expected: list[bool]) -> None:
    training = Training()
    judge = Bodies(vars(training), is_logging=False)
    found = []
    for body in bodies:
        body(training)
        found.append(judge.end())
    assert found == expected


def test_body_is_clean_without_optimizers_in_the_state() -> None:
    training = Training()
    judge = Bodies({"one": training.one}, is_logging=False)
    gathers(training)
    assert judge.end()


@pytest.mark.parametrize("reduced_in", [None, torch.float64])
def test_gradients_that_fsdp2_has_not_reduced_count(
    mesh: DeviceMesh, reduced_in: torch.dtype | None
) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    for part in (model[0], model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=reduced_in))
    optimizer = SGD(model.parameters(), lr=0.1)
    judge = Bodies({"model": model, "optimizer": optimizer}, is_logging=False)
    found = []
    for number in range(6):
        is_last = number % 3 == 2
        model.set_requires_gradient_sync(is_last)
        model(torch.ones(1, 2)).sum().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        found.append(judge.end())
    assert found == [False, False, True] * 2


class Script:
    """Each optimizer step has the gradients of four bodies."""

    def __init__(self, folder: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = Adam(self.model.parameters(), lr=0.1)
        state = {"model": self.model, "optimizer": self.optimizer}
        self.checkpointer = Checkpointer(folder, state, seed=1, position="step", **options)
        self.first = -1

    def train(self, until: int = 99, total: int = 16) -> "Script":
        """Train; die in a body."""
        for step in self.checkpointer.steps(total):
            self.first = step if self.first < 0 else self.first
            self.model(torch.randn(4, 3)).square().mean().backward()
            if step == until:
                self.checkpointer.wait()
                return self
            if step % 4 == 3:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self

    def everything(self) -> str:
        """Return its weights and the state of its optimizer."""
        return str([*self.model.parameters(), self.optimizer.state_dict()])


def saved_in(folder: Path) -> list[int]:
    return sorted(int(name[5:]) for name in os.listdir(folder) if name.startswith("step-"))


@pytest.mark.parametrize("until", [4, 5, 6, 7])
def test_snapshots_move_to_bodies_with_a_step(
    tmp_path: Path, memory: Given, until: int, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = Script(tmp_path / "undisturbed", checkpoint_every=None).train().everything()
    logged(capfd)
    memory(-1)
    Script(tmp_path, checkpoint_every=None).train(until)
    (line,) = logged(capfd)
    assert line.startswith("no snapshot or checkpoint of step 1: its body has changed gradients")
    assert "use parts: docs/guide/data.md" in line
    memory(4)
    second = Script(tmp_path, checkpoint_every=None).train()
    assert (second.first, second.everything()) == (4, expected)


def test_optimizer_step_before_the_loop_is_not_one_of_its_first_body(tmp_path: Path) -> None:
    script = Script(tmp_path, checkpoint_every=1)
    script.optimizer.step()
    script.train(1)
    assert saved_in(tmp_path) == []


@pytest.mark.parametrize(("every", "expected"), [(1, [4, 8, 12, 16]), (3, [4, 8, 12, 16])])
@pytest.mark.parametrize("has_memory", [False, True])
def test_checkpoints_move_to_bodies_with_a_step(
    tmp_path: Path, memory: Given, has_memory: bool, every: int, expected: list[int]
) -> None:
    if has_memory:
        memory(-1)
    Script(tmp_path, checkpoint_every=every, keep=9).train()
    assert saved_in(tmp_path) == expected


def test_last_step_is_saved_whatever_its_body_did(tmp_path: Path) -> None:
    Script(tmp_path, checkpoint_every=100).train(total=6)
    assert saved_in(tmp_path) == [6]


def test_save_writes_and_warns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = Script(tmp_path, checkpoint_every=100)
    script.checkpointer.restore()
    gathered = script.model(torch.ones(1, 3)).sum()
    gathered.backward()
    script.checkpointer.step(1)
    assert script.checkpointer.save(1)
    assert saved_in(tmp_path) == [1]
    assert "the checkpoint of step 1 does not have the gradients" in logged(capfd)[0]


def test_drain_waits_for_a_body_with_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.memfd_create("test")
    os.ftruncate(fd, preemption.PAGE_BYTES)
    words = memoryview(mmap.mmap(fd, preemption.PAGE_BYTES)).cast("Q")
    notice = Notice(0, fd, 0)
    os.close(fd)
    monkeypatch.setattr(checkpointer, "find_notice", lambda *_, **__: notice)
    words[preemption.SAVES] = words[preemption.IS_WHOLE] = words[preemption.UNTIL_NS] = 1
    Script(tmp_path, checkpoint_every=100).train(7)
    assert saved_in(tmp_path) == [4]
    Script(tmp_path, checkpoint_every=100).train(11)
    assert saved_in(tmp_path) == [4]  # the notice is obeyed once


def test_added_group_is_warned_of_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = Script(tmp_path, checkpoint_every=100)
    script.checkpointer.restore()
    for step in range(1, 4):
        if step == 2:
            script.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        script.checkpointer.step(step)
    (line,) = logged(capfd)
    assert "'optimizer' has got parameters in step 2" in line
    assert "create all parameter groups at the start" in line
