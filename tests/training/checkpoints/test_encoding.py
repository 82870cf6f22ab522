"""Values of a state dict: as plain data, and as they were."""

import io
from collections import Counter, OrderedDict, defaultdict
from datetime import date
from enum import Enum, Flag
from typing import Any

import numpy as np
import pytest
import torch
from ft_run.training.checkpoints.encoding import (
    PlainValue,
    flatten,
    foreign_values,
    put,
    with_keys,
    without_keys,
)
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner


class Color(Enum):
    RED = ("r", 1)


class Mode(Flag):
    A = 1
    B = 2


VALUES = {
    "scalars": [np.float32(0.5), np.int64(3), np.float64(1.5), np.bool_(True), np.str_("x")],
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "record": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "time": np.datetime64("2026-01-01"),
    "sets": (frozenset({(1, "a")}), {(1, 2)}, frozenset({frozenset({1})}), {"a"}, set()),
    "enums": [Color.RED, Mode.A | Mode.B],
    "tuple": (1, (2.0, [np.int8(1)]), None),
    "keys": {np.int64(4): 1, b"k": 2, (1, np.int32(2)): 3, frozenset({1, 2}): 4, Color.RED: 5},
    "nested": {"a": [{np.int64(1): {"b": np.float32(2)}}]},
    "counter": Counter({np.int64(1): 2}),
    "ordered": OrderedDict(b=np.float32(1), a=2),
    "default": {"a": defaultdict(list, {"b": [1]}), 3: defaultdict(int, {(1, 2): 4})},
    "plain": [1, "a", b"b", 1.5, 2j, True, None, torch.float32, torch.Size([1])],
}


def travel(state: Any) -> Any:
    """Return a state dict as a checkpoint or a snapshot of another host gives it back."""
    nested: dict[str, Any] = {}
    for key, value in flatten({"o": with_keys(state)}).items():
        data = io.BytesIO()
        torch.save(value, data)
        data.seek(0)
        put(nested, path_of(key, state), torch.load(data, weights_only=True))
    return without_keys(nested["o"])


def path_of(key: str, state: Any) -> Any:
    planner = DefaultSavePlanner()
    planner.set_up_planner({"o": with_keys(state)}, is_coordinator=True)
    return planner.mappings[key]


@pytest.mark.parametrize("name", VALUES)
def test_value_returns_with_its_type(name: str) -> None:
    (found,) = travel({"it": VALUES[name]}).values()
    assert repr(found) == repr(VALUES[name])
    (found,) = travel({"it": (VALUES[name],)}).values()
    assert repr(found) == repr((VALUES[name],))


def test_plain_state_is_not_copied() -> None:
    state = {"a": torch.ones(1), "b": [1, 2], "c": {"d": (1, "x")}}
    assert with_keys(state) is state
    assert without_keys(state) is state


def test_state_that_is_a_list_returns() -> None:
    """As of a wrapper of several optimizers."""
    state = [{"state": {0: 1.0}, "param_groups": []}, {"state": {}}]
    assert travel(state) == state


def test_generator_returns() -> None:
    generator = torch.Generator().manual_seed(5)
    (found,) = travel({"it": generator}).values()
    assert torch.equal(torch.rand(3, generator=found), torch.rand(3, generator=generator))


def test_path_of_foreign_value_is_shown() -> None:
    flat = flatten({"stats": with_keys({"hist": [1, date(2026, 1, 1)], "b": np.array([None])})})
    flat |= flatten({"cfg": PlainValue("cfg", {"x": {"y": 1}}).state_dict()})
    assert foreign_values(flat, {"cfg"}) == [
        "state['stats']['hist'][1] (date)",
        "state['stats']['b'] (ndarray)",
    ]
    with pytest.raises(TypeError, match=r"of type date for state\['cfg'\]\['x'\]\['y'\]: "):
        PlainValue("cfg", {"x": {"y": date(2026, 1, 1)}})
    with pytest.raises(TypeError, match=r"for the key .* of state\['cfg'\]"):
        PlainValue("cfg", {date(2026, 1, 1): 1})


def test_enum_of_unknown_module_is_refused() -> None:
    state = with_keys({"it": Color.RED})
    mark, _, name, value = state["it"]
    for module in ("os", "no_such_module"):
        with pytest.raises(RuntimeError, match="does not exist"):
            without_keys({"it": (mark, module, name, value)})
    with pytest.raises(RuntimeError, match="does not exist"):
        without_keys({"it": (mark, "os", "system", "true")})


def test_plain_value_keeps_containers_and_trained_tensors() -> None:
    trained = torch.zeros(1, requires_grad=True)
    inner: dict[str, Any] = {"best": 0.0, "gone": 1}
    value: dict[str, Any] = {"trained": trained, "inner": inner, "losses": [trained * 3, 1.0]}
    kept = PlainValue("value", value)
    saved = kept.state_dict()
    with torch.no_grad():
        trained += 5
    inner.clear()
    value["losses"] = []
    kept.load_state_dict(saved)
    assert value["trained"] is trained
    assert value["inner"] is inner
    assert (trained.item(), trained.requires_grad) == (0.0, True)
    assert inner == {"best": 0.0, "gone": 1}
    (loss, number) = value["losses"]
    assert (loss.item(), loss.grad_fn, number) == (0.0, None, 1.0)
    value["trained"] = torch.ones(2, requires_grad=True)
    kept.load_state_dict(saved)
    assert value["trained"].shape == (1,)
