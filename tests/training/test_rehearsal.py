"""The records of a rehearsal."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from ft_run.training import rehearsal
from ft_run.training.checkpoints.values import PlainValue
from ft_run.training.fingerprints import fingerprint
from ft_run.training.rehearsal import Rehearsal
from ft_run.training.script_variables import Variables
from torch import nn


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the order of a row, which records read when they are opened."""
    monkeypatch.setenv("FT_RUN_REHEARSAL", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(rehearsal, "_opened", [])
    values = {"steps": 99, "keys": [], "end": None, "failures": [], "checkpoint_every": 6}
    (tmp_path / "order.json").write_text(json.dumps(values))
    return values


def records(path: Path) -> list[dict[str, Any]]:
    (file,) = path.glob("rank0-*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_fingerprints_are_equal_for_equal_values_only() -> None:
    value = {"a": [1, 2.5, "x"], ("k", 1): torch.ones(3), "s": {3, 1}, "e": {}}
    assert fingerprint(value) == fingerprint(json_like(value))
    for other in ({**value, "a": [1, 2.5]}, {**value, "s": {3}}, {**value, "e": {"f": 1}}):
        assert fingerprint(value) != fingerprint(other)
    value[("k", 1)] = torch.tensor([1.0, 1.0, 1.5])
    assert fingerprint(value)["[('k', 1)]"] != fingerprint(json_like(value) | {
        ("k", 1): torch.ones(3)})["[('k', 1)]"]  # fmt: skip
    assert fingerprint({1: "a"}) != fingerprint({"1": "a"})


def json_like(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return a copy that shares no object with the value."""
    return {
        key: one.clone() if isinstance(one, torch.Tensor) else one for key, one in value.items()
    }


@pytest.mark.usefixtures("order")
def test_intervals_and_folder_are_those_of_the_rehearsal(tmp_path: Path) -> None:
    one, other = Rehearsal("a/checkpoints"), Rehearsal("b/checkpoints")
    folder, snapshot, checkpoint = one.adapt("30s", "10min")
    assert folder.parent == tmp_path / "checkpoints"
    assert (snapshot, checkpoint) == (1, 6)
    assert one.adapt(2, 100)[1:] == (2, 6)
    assert one.adapt(None, None)[1:] == (None, None)
    assert other.adapt(1, 1)[0] != folder == Rehearsal("a/checkpoints").adapt(1, 1)[0]


def test_folder_with_a_new_name_is_known_by_its_order(
    order: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "order.json").write_text(json.dumps({**order, "keys": ["run-1/a", "run-1/b"]}))
    state = {"model": nn.Linear(2, 1)}
    for name in ("run-2/a", "run-1/b", "run-2/a"):
        Rehearsal(name).record(state, 1)
    assert [one["key"] for one in records(tmp_path)] == ["run-1/a", "run-1/b", "run-1/a"]


@pytest.mark.usefixtures("order")
def test_state_is_recorded_by_object_and_tensor(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    values = {"sum": 1.5}
    state = {"model": model, "optimizer": optimizer, "values": PlainValue("values", values)}
    mine = Rehearsal("checkpoints")
    mine.record(state, 0, is_restored=True)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    mine.record(state, 1)
    before, after = (one["objects"] for one in records(tmp_path))
    assert before["model"]["weight"] != after["model"]["weight"]
    assert "state.weight.exp_avg" in after["optimizer"]
    assert after["values"] == {"sum": "1.5"} == before["values"]


class Augment:
    """An object of the script, with a generator of its own."""

    def __init__(self) -> None:
        self.rng = numpy.random.default_rng(0)
        self.calls = 0


def test_variables_of_the_script_are_found() -> None:
    model, augment, rows = nn.Linear(2, 1), Augment(), [1.0]
    ema = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), 1.0), 2)
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return count

    in_state = {"total": 1}
    state = {"model": model, "totals": PlainValue("totals", in_state)}
    reader = Variables()
    before = _read(reader, state)
    assert "in_state" not in before
    counted()
    augment.rng.random()
    augment.calls += 1
    rows.append(2.0)
    ema.n_averaged += 1
    scheduler.last_epoch = 7
    after = _read(reader, state)
    changed = {name for name in after if before.get(name) != after[name]}
    expected = {"augment.rng (Generator)", "augment.calls", "rows", "count"}
    assert expected | {"ema (AveragedModel)", "scheduler (StepLR)"} <= changed
    assert not {"model", "in_state"} & changed


def _read(reader: Variables, state: dict[str, Any]) -> dict[str, str]:
    return reader.read(state)  # as the frame of the Checkpointer between reader and script


def test_plain_values_of_state_keep_their_keys() -> None:
    assert fingerprint(Counter({3: 1})) == {"[3]": "1"}
