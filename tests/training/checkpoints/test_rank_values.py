"""Values of each rank: compared, packed, restored in place; generators as one tensor."""

import os
import random
from typing import Any

import numpy
import pytest
import torch
from ft_run.training.checkpoints.checkpoint_files import serialized
from ft_run.training.checkpoints.encoding import PlainValue, encode, flatten
from ft_run.training.checkpoints.layout import Description
from ft_run.training.checkpoints.rank_state import Generators, RankRecord, RankState
from ft_run.training.checkpoints.snapshot_file import SnapshotFile
from ft_run.training.checkpoints.state import State
from ft_run.training.checkpoints.values import (
    SLOT_KEY,
    digest_of,
    leaves,
    packed,
    pickled,
    unpacked,
)
from ft_run.training.ranks import Ranks
from torch import nn


def digest(value: Any) -> int:
    return digest_of(leaves(value))


def test_digests_see_each_value() -> None:
    large = torch.zeros(1 << 19)
    values: list[Any] = [
        {},
        {"a": 1},
        {"a": 2},
        {"b": 1},
        {"a": [1, 2]},
        {"a": "1"},
        {"a": torch.zeros(3)},
        {"a": torch.tensor([0.0, 0.0, 1e-30])},
        {"a": large},
        {"a": large + 1},
    ]
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"a": torch.zeros(3)}) == digest({"a": torch.zeros(4)[:3]})
    assert digest({"a": torch.ones(2, 2).t()}) == digest({"a": torch.ones(2, 2)})


def slot_of(step: int, *payloads: bytes, room: int = 0) -> torch.Tensor:
    data = packed(step, payloads)
    slot = torch.zeros(len(data) + room, dtype=torch.uint8)
    slot[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return slot


def test_each_rank_finds_its_own_values() -> None:
    slot = slot_of(7, serialized({"a": [1]}), serialized({"a": [2]}), room=1000)
    assert [unpacked(slot, 7, rank) for rank in range(3)] == [{"a": [1]}, {"a": [2]}, {}]


@pytest.mark.parametrize("damage", ["another step", "a flipped bit", "half written", "empty"])
def test_values_of_another_step_or_damaged_ones_are_not_used(damage: str) -> None:
    slot = slot_of(7, serialized({"a": [1]}))
    if damage == "a flipped bit":
        slot[slot.numel() // 2] ^= 1
    elif damage == "half written":
        slot[slot.numel() // 2 :] = 0
    elif damage == "empty":
        slot = torch.zeros(64, dtype=torch.uint8)
    assert unpacked(slot, 8 if damage == "another step" else 7, 0) == {}


def test_a_slot_grows_and_keeps_its_size() -> None:
    record = RankRecord(Ranks())
    assert set(record.state_dict()) == {"origin"}
    record.put(b"a" * 10)
    first = record.slot
    assert first is not None
    record.put(b"b" * 20)
    assert record.slot is first
    record.put(b"c" * (first.numel() + 1))
    assert record.slot is not None
    assert record.slot.numel() == 2 * first.numel()


def test_a_state_of_an_older_version_is_used_as_it_is() -> None:
    ranks = Ranks()
    rank_state = RankState(ranks, RankRecord(ranks), ["a"])
    nested = {"a": {"x": 1}}
    assert rank_state.select(nested, 3, compares=True) == frozenset()
    assert nested == {"a": {"x": 1}}


def test_plain_values_are_restored_in_place() -> None:
    values: dict[Any, Any] = {"epoch": 3, 1: [2.5, None], "by name": {"a": (1, 2)}}
    order = [1, 2]
    state = State({"values": values, "order": order})
    saved = state.collect()
    values["epoch"], values["new"] = 4, 5
    values[1].append(1)
    order.clear()
    state.apply(saved)
    assert values == {"epoch": 3, 1: [2.5, None], "by name": {"a": (1, 2)}}
    assert order == [1, 2]
    state.apply({})  # a checkpoint without them
    assert order == [1, 2]


def test_other_values_are_refused() -> None:
    expected = r"value of type object for state\['a'\]\['x'\]\[0\]\['y'\]: expected numbers"
    with pytest.raises(TypeError, match=expected):
        PlainValue("a", {"x": [{"y": object()}]})
    with pytest.raises(TypeError, match="a sampler of torch does not save its position"):
        State({"sampler": torch.utils.data.SequentialSampler([1])})
    with pytest.raises(ValueError, match="which does not begin with ft_run_"):
        State({"ft_run_generators": {}})


def test_generators_continue() -> None:
    def draw() -> list[float]:
        drawn = [random.random(), random.gauss(0, 1), float(torch.rand(()))]
        return [*drawn, float(numpy.random.rand()), float(numpy.random.randn())]

    draw()  # there are second Gaussian numbers now
    generators = Generators()
    saved = {key: value.clone() for key, value in generators.state_dict().items()}
    expected = draw()
    draw()
    generators.load_state_dict(saved)
    assert draw() == expected
    expected = draw()
    generators.load_state_dict(saved)
    draw()
    generators.load_state_dict({})
    generators.load_state_dict({**saved, "torch": torch.zeros(5, dtype=torch.uint8)})
    assert draw() == expected  # neither has changed anything


def test_another_generator_of_numpy_is_left_alone() -> None:
    chance: Any = numpy.random
    present = chance.get_bit_generator()
    chance.set_bit_generator(chance.PCG64(1))
    try:
        generators = Generators()
        saved, expected = generators.state_dict(), chance.rand()
        chance.set_bit_generator(chance.PCG64(1))
        generators.load_state_dict(saved)
        assert chance.rand() == expected
    finally:
        chance.set_bit_generator(present)


def kept() -> dict[str, Any]:
    """Return what a script may have in a dictionary, equal at each call."""
    parts = torch.tensor([1 + 2j, 3 - 1j])
    return {
        "loss": torch.tensor(1.0),
        "weights": nn.Parameter(torch.ones(2)),
        "conjugate": parts.conj(),
        "column": torch.arange(6.0).view(2, 3)[:, 1],
        "generator": torch.Generator().manual_seed(1),
    }


def test_equal_values_have_equal_pickles() -> None:
    word = "".join(["wo", "rd"])
    assert pickled(("word", word)) == pickled((word, word))
    assert pickled({"b", "a", "c"}) == pickled({"c", "b", "a"}) != pickled({"a", "b"})
    assert len({pickled(1), pickled(1.0), pickled(True)}) == 3
    one, same = ((encode(value),) for value in (kept(), kept()))
    assert pickled(one) == pickled(same)
    for name in kept():
        other = kept()
        other[name] = nn.Parameter(torch.ones(2)) if name == "generator" else other[name] + 1
        assert pickled((encode(other),)) != pickled(one)
    parts = torch.tensor([1 + 2j, 3 - 1j])
    views = (parts, parts.conj(), parts.imag, parts.conj().imag)
    assert len({pickled((view,)) for view in views}) == len(views)
    itself: list[Any] = []
    itself.append(itself)
    assert pickled(itself)


def test_all_of_a_large_tensor_counts_in_a_checkpoint() -> None:
    one, other = torch.zeros(1 << 20), torch.zeros(1 << 20)
    other[1] = 1
    assert digest_of([one]) != digest_of([other])
    assert digest_of([one], is_exact=False) == digest_of([other], is_exact=False)
    assert digest_of([one], is_exact=False) != digest_of([one + 1], is_exact=False)


def test_the_digests_of_objects_in_a_snapshot() -> None:
    fd = os.memfd_create("test")
    file = SnapshotFile(fd)
    state: dict[str, Any] = {"a": {"n": 1, "t": torch.zeros(3)}, "b": {"n": 1}, "other": 1}
    file.lay_out(state)
    found = file.digests(("a", "b"))
    assert found[0] != found[1]
    file.describe(Description(b"x"))
    assert file.digests(("b", "a", "none")) == [*reversed(found), 0]
    for part, value in (("n", 2), ("t", torch.ones(3))):
        state["a"][part] = value
        values = file.values_of(flatten(state))
        assert values is not None
        file.write(values)
        digest_of_a, digest_of_b = file.digests(("a", "b"))
        assert (digest_of_a != found[0], digest_of_b) == (True, found[1])
        found[0] = digest_of_a
    os.close(fd)


def test_the_values_of_all_ranks_are_replaced_if_they_have_room() -> None:
    fd = os.memfd_create("test")
    file, slot = SnapshotFile(fd), torch.zeros(8, dtype=torch.uint8)
    file.lay_out({"ft_run_ranks": {"values": slot}})
    assert file.overwrite(SLOT_KEY, torch.arange(8, dtype=torch.uint8))
    assert file.read(0).tolist() == list(range(8))
    assert not file.overwrite(SLOT_KEY, torch.zeros(9, dtype=torch.uint8))
    assert not file.overwrite("other", slot)
    os.close(fd)


def test_a_snapshot_is_loaded_without_the_state_dicts_of_other_objects() -> None:
    class Loader:
        """Its state dict starts workers."""

        def state_dict(self) -> dict[str, Any]:
            raise AssertionError

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    loader = Loader()
    state = State({"model": torch.nn.Linear(1, 1), "loader": loader})
    assert all(key.startswith("model.") for key in state.prepare([], is_local=True))
