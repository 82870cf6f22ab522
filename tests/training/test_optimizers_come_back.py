"""Each optimizer, in each layout of parameter groups, comes back whole after a simulated kill.

Or one clear error is raised before anything is loaded. A worker kill leaves the snapshots, a job
kill leaves a checkpoint on storage.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.training import Checkpointer
from torch import nn, optim
from torch.optim import Optimizer, lr_scheduler

Given = Callable[..., memoryview]
Groups = list[dict[str, Any]]
KILLED_AT, TOTAL = 5, 9


class Own(Optimizer):
    """An optimizer of the script's own, with state in odd places and of odd types."""

    def __init__(self, groups: Groups, lr: float = 0.01) -> None:
        super().__init__(groups, {"lr": lr, "warmup": {0: 0.5, 4: 0.25}, "notes": {}})
        self.seen = {(1, b"x"): 0, "empty": {}}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # it takes none
        assert closure is None
        self.seen[1, b"x"] += 1  # type: ignore[operator]  # it is a number
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state.setdefault("kind", "heavy ball")
                state.setdefault("sum", torch.zeros_like(parameter, dtype=torch.float64))
                state.setdefault("past", {0: torch.zeros_like(parameter), "none": {}})
                state["past"][0] += parameter.grad
                state["sum"] += parameter.grad.double() / 3
                parameter -= group["lr"] * (state["sum"].float() + state["past"][0])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": dict(self.seen)}

    def load_state_dict(self, state_dict: Any) -> None:
        self.seen = dict(state_dict["seen"])
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})


OPTIMIZERS: dict[str, Callable[[Groups], Optimizer]] = {
    "ASGD": lambda groups: optim.ASGD(groups, lr=0.01),
    "Adadelta": lambda groups: optim.Adadelta(groups, lr=0.1),
    "Adafactor": lambda groups: optim.Adafactor(groups, lr=0.01),
    "Adagrad": lambda groups: optim.Adagrad(groups, lr=0.01),
    "Adam": lambda groups: optim.Adam(groups, lr=0.01),
    "Adam, amsgrad": lambda groups: optim.Adam(groups, lr=0.01, amsgrad=True),
    "AdamW, lr is a tensor": lambda groups: optim.AdamW(
        groups, lr=torch.tensor(0.01), foreach=False
    ),
    "Adamax": lambda groups: optim.Adamax(groups, lr=0.01),
    "Muon": lambda groups: optim.Muon(groups, lr=0.01),
    "NAdam": lambda groups: optim.NAdam(groups, lr=0.01),
    "RAdam": lambda groups: optim.RAdam(groups, lr=0.01),
    "RMSprop": lambda groups: optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda groups: optim.Rprop(groups, lr=0.01),
    "SGD": lambda groups: optim.SGD(groups, lr=0.01),
    "SGD, momentum": lambda groups: optim.SGD(groups, lr=0.01, momentum=0.9),
    "its own": Own,
}
LAYOUTS = {
    "one": [[0, 1, 2]],
    "two": [[0], [1, 2]],
    "first is empty": [[], [0, 1, 2]],
    "middle is empty": [[0], [], [1, 2]],
    "last is empty": [[0, 1, 2], []],
    "frozen members": [[0, 1], [2]],
    "added later": [[1, 2]],
    "removed in the script": [[0], [1, 2]],
}
REFUSED = ("added later", "removed in the script")


class Script:
    """A training script in one life."""

    def __init__(self, folder: Path, kind: str, layout: str, *, is_second: bool = False) -> None:
        torch.manual_seed(0)
        self.layers = [nn.Linear(4, 4, bias=False) for _ in range(3)]
        self.model = nn.Sequential(*self.layers)
        self.layout = layout
        groups = LAYOUTS[layout]
        if layout == "removed in the script" and is_second:
            groups = groups[:1]
        self.optimizer = OPTIMIZERS[kind](
            [{"params": [self.layers[i].weight for i in group]} for group in groups]
        )
        state = {"model": self.model, "optimizer": self.optimizer}
        self.checkpointer = Checkpointer(
            folder, state, checkpoint_every=KILLED_AT, seed=3, position="step"
        )

    def train(self, until: int = TOTAL) -> "Script":
        """Train; die after ``until`` steps."""
        for step in self.checkpointer.steps(TOTAL):
            if step == until:
                self.checkpointer.wait()
                break
            if self.layout == "frozen members":  # as at each start; then one after the other
                self.layers[0].requires_grad_(step >= 3)
                self.layers[1].requires_grad_(step < 2)
            if self.layout == "added later" and step >= 3 and len(self.optimizer.param_groups) == 1:
                self.optimizer.add_param_group({"params": [self.layers[0].weight]})
            self.optimizer.zero_grad()
            self.model(torch.randn(5, 4)).square().sum().backward()
            self.optimizer.step()
        return self

    def everything(self) -> list[Any]:
        """Return all of its state, in a form that shows types and bits."""
        return [*shown(self.model.state_dict()), *shown(self.optimizer.state_dict())]


def shown(value: Any) -> Iterator[Any]:
    """Yield the parts of a value."""
    yield type(value)
    if isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield key
            yield from shown(value[key])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from shown(inner)
    elif isinstance(value, torch.Tensor):
        yield value.dtype, value.shape, value.numpy(force=True).tobytes()
    else:
        yield repr(value)


@pytest.fixture
def run(tmp_path: Path, memory: Given) -> Callable[..., None]:
    """Train, die in the given way, and resume; compare with training that nothing happens to."""

    def run(way: str, make: Callable[..., Any], *, is_refused: bool = False) -> None:
        undisturbed = make(tmp_path / "undisturbed").train().everything()
        if way == "worker kill":
            memory(-1)
        make(tmp_path / "folder").train(KILLED_AT)
        if way == "worker kill":
            memory(KILLED_AT)
        second = make(tmp_path / "folder", is_second=True)
        if not is_refused:
            assert second.train().everything() == undisturbed
            return
        before = second.everything()
        with pytest.raises(RuntimeError, match=r"parameter groups? .*create all parameter groups"):
            second.checkpointer.restore()
        assert second.everything() == before

    return run


WAYS = ("worker kill", "job kill")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_comes_back_or_is_refused(
    run: Callable[..., None], kind: str, layout: str, way: str
) -> None:
    def make(folder: Path, **options: bool) -> Script:
        return Script(folder, kind, layout, **options)

    run(way, make, is_refused=layout in REFUSED)


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "ChainedScheduler": lambda of: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(of, 0.5, 4), lr_scheduler.ExponentialLR(of, 0.9)]
    ),
    "CosineAnnealingLR": lambda of: lr_scheduler.CosineAnnealingLR(of, 7),
    "CosineAnnealingWarmRestarts": lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 3),
    "CyclicLR": lambda of: lr_scheduler.CyclicLR(of, 0.01, 0.1, 3),
    "LambdaLR": lambda of: lr_scheduler.LambdaLR(of, Decay()),
    "LinearLR": lambda of: lr_scheduler.LinearLR(of, 0.2, 1.0, 6),
    "MultiStepLR": lambda of: lr_scheduler.MultiStepLR(of, [2, 7]),
    "OneCycleLR": lambda of: lr_scheduler.OneCycleLR(of, 0.1, total_steps=12),
    "ReduceLROnPlateau": lambda of: lr_scheduler.ReduceLROnPlateau(of, patience=1),
    "SequentialLR": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.ConstantLR(of, 0.5, 2), lr_scheduler.StepLR(of, 2)], [6]
    ),
}
ODD: dict[str, dict[Any, Any]] = {
    "int": {0: "first", 7: [{2: "inner"}]},
    "tuple": {(2, "a"): 1.5, (): (3, {4: 5})},
    "bytes": {b"k": {b"\x00\xff": 1}},
    "empty": {"past": {}, "more": [{}, {"deep": {}}]},
}


class Decay:
    """A callable with state."""

    def __init__(self) -> None:
        self.factors = {0: 1.0, 6: 0.25}

    def __call__(self, epoch: int) -> float:
        return self.factors[0 if epoch < 6 else 6]


class Scheduled:
    """A script with a scheduler, and odd keys in the scheduler, a group and an extra state."""

    def __init__(self, folder: Path, kind: str, odd: str, *, is_second: bool = False) -> None:
        torch.manual_seed(0)
        keys = ODD[odd]
        self.model = Extra(keys if not is_second else {})
        self.optimizer = optim.SGD(
            [{"params": [*self.model.parameters()], "odd": {} if is_second else keys}],
            lr=0.1,
            momentum=0.5,
        )
        self.scheduler = SCHEDULERS[kind](self.optimizer)
        self.scheduler.odd = {} if is_second else keys
        state = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        self.checkpointer = Checkpointer(
            folder, state, checkpoint_every=KILLED_AT, seed=3, position="step"
        )

    def train(self, until: int = TOTAL) -> "Scheduled":
        """Train; die after ``until`` steps."""
        for step in self.checkpointer.steps(TOTAL):
            if step == until:
                self.checkpointer.wait()
                break
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(5, 4)).square().sum()
            loss.backward()
            self.optimizer.step()
            is_plateau = isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau)
            self.scheduler.step(*([1.0] if is_plateau else []))
        return self

    def everything(self) -> list[Any]:
        """Return all of its state, in a form that shows types and bits."""
        objects = (self.model, self.optimizer, self.scheduler)
        return [part for one in objects for part in shown({**one.state_dict()})]


class Extra(nn.Linear):
    """A module with an extra state."""

    def __init__(self, extra: dict[Any, Any]) -> None:
        super().__init__(4, 4)
        self.extra = extra

    def get_extra_state(self) -> dict[Any, Any]:
        return self.extra

    def set_extra_state(self, state: dict[Any, Any]) -> None:
        self.extra = state


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_scheduler_comes_back_with_odd_keys(
    run: Callable[..., None], kind: str, odd: str, way: str
) -> None:
    run(way, lambda folder, **options: Scheduled(folder, kind, odd, **options))
