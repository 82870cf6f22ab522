"""The records of a rehearsal."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from ft_run.training.checkpoints.encoding import PlainValue
from ft_run.training.fingerprints import fingerprint
from ft_run.training.rehearsal import Rehearsal
from ft_run.training.script_variables import variables
from torch import nn
from torch.utils.data import DataLoader


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the order of a row, which records read when they are opened."""
    monkeypatch.setenv("FT_RUN_REHEARSAL", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    values: dict[str, Any] = {"steps": 99, "end": None, "failures": [], "most": 6}
    (tmp_path / "order.json").write_text(json.dumps(values))
    return values


def records(path: Path) -> list[dict[str, Any]]:
    (file,) = path.glob("rank0-*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_fingerprints_are_equal_for_equal_values_only() -> None:
    value: dict[Any, Any] = {"a": [1, 2.5, "x"], ("k", 1): torch.ones(3), "s": {3, 1}}
    same: dict[Any, Any] = {**value, ("k", 1): torch.ones(3), "s": {1, 3}}
    assert fingerprint(value) == fingerprint(same)
    for other in ({**value, "a": [1, 2.5]}, {**value, "s": {3}}, {**value, 1: 2}):
        assert fingerprint(value) != fingerprint(other)
    same["k", 1][2] = 1.5
    assert fingerprint(value)["[('k', 1)]"] != fingerprint(same)["[('k', 1)]"]
    assert fingerprint({1: "a"}) != fingerprint({"1": "a"})
    assert fingerprint(Counter({3: 1})) != fingerprint(Counter({3: 2}))
    assert fingerprint({"a": [2]}) == {"['a'][0]": "2"}


@pytest.mark.usefixtures("order")
def test_intervals_and_folder_are_those_of_the_rehearsal(tmp_path: Path) -> None:
    folder, snapshot, checkpoint = Rehearsal("a/checkpoints", "30s", "10min").arguments
    assert folder.parent == tmp_path / "checkpoints"
    assert (snapshot, checkpoint) == (1, 6)
    assert Rehearsal("a/checkpoints", 2, 100).arguments == (folder, 2, 6)
    other = Rehearsal("b/checkpoints", None, None).arguments
    assert other[0] != folder
    assert other[1:] == (None, None)


@pytest.mark.usefixtures("order")
def test_state_is_recorded_by_object_and_tensor(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model.packed = nn.Parameter(torch.ones(4, dtype=torch.uint8), requires_grad=False)
    values = {"sum": 1.5}
    state = {"model": model, "optimizer": optimizer, "values": PlainValue("values", values)}
    mine = Rehearsal("checkpoints", 1, 1)
    mine.record(state, 0, is_restored=True)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    mine.record(state, 1)
    before, after = (one["objects"] for one in records(tmp_path))
    assert before["model"]["['weight']"] != after["model"]["['weight']"]
    assert "['state'][0]['exp_avg']" in after["optimizer"]
    assert after["values"] == {"['sum']": "1.5"} == before["values"]


class Config(dict[str, Any]):
    """A dictionary with attributes, which has each name that is asked for."""

    __getattr__ = dict.get


class Augment:
    """An object of the script, with a generator of its own."""

    def __init__(self) -> None:
        self.rng = numpy.random.default_rng(0)
        self.calls = 0


def test_variables_of_the_script_are_found() -> None:
    model, augment, rows = nn.Linear(2, 1), Augment(), [1.0]
    ema = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), 1.0), 2)
    generator, words, empty = torch.Generator(), {"a": 1}, list[int]()
    config = Config(rate=0.1)
    loader: Any = DataLoader([1, 2], generator=generator)  # type: ignore[arg-type]  # any sequence
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return count

    in_state = {"total": 1}
    state = {"model": model, "totals": PlainValue("totals", in_state)}
    before = _read(state)
    assert "in_state" not in before
    assert all(
        _read(state)["generator (Generator)"] == before["generator (Generator)"] for _ in range(5)
    )
    assert "empty" in before  # it may have items before a restart
    assert empty == []
    counted()
    augment.rng.random()
    augment.calls += 1
    rows.append(2.0)
    words["b"] = words.pop("a")
    config["rate"] = 0.2
    ema.n_averaged += 1
    scheduler.last_epoch = 7
    torch.rand(1, generator=generator)
    after = _read(state)
    changed = {name for name in after if before.get(name) != after[name]}
    expected = {
        "augment.rng (Generator)",
        "augment.calls",
        "rows",
        "words",
        "config",
        "count",
        "counted.count",
    }
    expected |= {"ema (AveragedModel)", "scheduler (StepLR)", "generator (Generator)"}
    assert changed - {"before"} == expected
    assert loader.generator is generator


def _read(state: dict[str, Any]) -> dict[str, int]:
    return variables(state)  # as the frame of the Checkpointer between reader and script
