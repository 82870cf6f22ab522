"""The short way to a flat state dict says what DCP says, whatever is in the objects."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ft_run.training.checkpoints import flat_state as module
from ft_run.training.checkpoints.encoding import flatten
from ft_run.training.checkpoints.flat_state import FlatState
from ft_run.training.checkpoints.state import State
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.nn.utils import parametrizations
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR


class Extra(nn.Linear):
    """A module with state that is no tensor."""

    def get_extra_state(self) -> dict[str, Any]:
        return {"count": 3, "names": ["a"]}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        pass


class Wrapper(nn.Module):
    """Holds a network as DDP does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(x)
        return result


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def parametrized() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4))


def extra() -> nn.Module:
    return nn.Sequential(Extra(4, 4), nn.Linear(4, 4))


def in_parts() -> nn.Module:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1] = torch.compile(model[1], backend="eager")
    model[2].compile(backend="eager")
    return model  # type: ignore[no-any-return]  # it is a module


MODELS = (plain, tied, parametrized, extra, in_parts)
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "adam": Adam,
    "sgd": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "lbfgs": LBFGS,
    "groups": lambda parameters: Adam([{"params": [p]} for p in parameters], lr=0.1),
    "tensor lr": lambda parameters: Adam(parameters, lr=torch.tensor(0.1), foreach=False),
    "one": lambda parameters: Adam(list(parameters)[:1]),
}


def train(model: nn.Module, optimizer: Optimizer) -> None:
    def loss() -> Any:
        optimizer.zero_grad()
        value = model(torch.ones(3, 4)).square().sum()
        value.backward()
        return value

    with torch.compiler.set_stance("force_eager"):
        optimizer.step(loss)


def is_as_dcp_says(flat: FlatState, state: State) -> bool:
    expected = flatten(state.collect())
    return module._is_same_dict(flat.collect(), expected)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("make", MODELS)
def test_it_is_what_dcp_says(
    make: Callable[[], nn.Module], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    wrapped = Wrapper(model) if make is plain else model
    optimizer = OPTIMIZERS[kind](model.parameters())
    state = State({"model": wrapped, "optimizer": optimizer, "scheduler": StepLR(optimizer, 3)})
    flat = FlatState(state)
    assert is_as_dcp_says(flat, state)
    for _ in range(3):
        train(wrapped, optimizer)
        assert is_as_dcp_says(flat, state)
    for name in ("get_model_state_dict", "get_optimizer_state_dict"):
        monkeypatch.delattr(dcp, name)
    flat.collect()  # without asking DCP


def test_what_the_short_way_would_say_wrongly_is_left_to_dcp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = plain()
    state = State({"model": model, "optimizer": Adam(model.parameters())})
    wrong = {"model.0.weight": torch.ones(6, 4)}
    monkeypatch.setattr(module._Module, "collect", lambda _: (dict(wrong), {}))
    flat = FlatState(state)
    for _ in range(2):
        assert is_as_dcp_says(flat, state)


def test_what_optimizers_change() -> None:
    model: Any = plain()
    model[2].weight.requires_grad = False
    optimizer = Adam([model[0].weight, model[0].bias])
    other = Adam([model[2].bias])
    flat = FlatState(State({"model": model, "optimizer": optimizer}))
    flat.collect()
    expected = {"model.0.weight", "model.0.bias"}
    assert flat.late == expected
    train(model, optimizer)
    train(model, other)
    flat.collect()
    values = ("step", "exp_avg", "exp_avg_sq")
    expected |= {f"optimizer.state.0.{name}.{v}" for name in ("weight", "bias") for v in values}
    assert flat.late == expected


@torch.no_grad()
def grows(model: Any, optimizer: Optimizer) -> None:
    model.append(nn.Linear(4, 4))
    optimizer.add_param_group({"params": list(model[-1].parameters())})


@torch.no_grad()
def is_exchanged(model: Any, optimizer: Optimizer) -> None:
    old, new = model[0].weight, nn.Parameter(torch.ones(6, 4))
    model[0].weight = new
    optimizer.state[new] = optimizer.state.pop(old)
    optimizer.param_groups[0]["params"][0] = model[0].weight


@torch.no_grad()
def swaps(model: Any, optimizer: Optimizer) -> None:
    model[0], model[2] = model[2], model[0]


@torch.no_grad()
def loses(model: Any, optimizer: Optimizer) -> None:
    optimizer.state.clear()


@torch.no_grad()
def moves(model: Any, optimizer: Optimizer) -> None:
    model[0].weight.data = torch.ones(6, 4)


@torch.no_grad()
def reorders(model: Any, optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["params"].reverse()


@torch.no_grad()
def unfreezes(model: Any, optimizer: Optimizer) -> None:
    optimizer.add_param_group({"params": list(model.parameters())[2:]})


@pytest.mark.parametrize("change", [grows, is_exchanged, swaps, loses, moves, reorders, unfreezes])
def test_what_has_changed_is_looked_up_anew(change: Callable[[Any, Optimizer], None]) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Identity(), nn.Linear(6, 4))
    if change is swaps:
        model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 4))
    optimizer = Adam(list(model.parameters())[: 2 if change is unfreezes else None])
    state = State({"model": model, "optimizer": optimizer})
    flat = FlatState(state)
    train(model, optimizer)
    flat.collect()
    change(model, optimizer)
    assert is_as_dcp_says(flat, state)
    train(model, optimizer)
    assert is_as_dcp_says(flat, state)


def test_an_optimizer_of_no_module() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    optimizer = Adam(parameters)
    parameters[0].grad = torch.ones(2)
    optimizer.step()
    state = State({"optimizer": optimizer})
    flat = FlatState(state)
    for _ in range(2):
        assert is_as_dcp_says(flat, state)
    assert "optimizer.state.0.exp_avg" in flat.late
