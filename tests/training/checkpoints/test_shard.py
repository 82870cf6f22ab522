"""Checkpoints that ranks write themselves, in processes that know each other by gloo."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.tests.harness.forked import run_forked
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from ft_run.training.checkpoints.folder import CheckpointFolder
from ft_run.training.ranks import Ranks

store, folder, rank, size, way = *sys.argv[1:3], *map(int, sys.argv[3:5]), sys.argv[5]
dist.init_process_group("gloo", f"file://{store}", world_size=size, rank=rank)
whole = torch.arange(10.0)
state = {
    "sharded": distribute_tensor(whole, init_device_mesh("cpu", (size,)), [Shard(0)]),
    "alike": {str(n): torch.full((n,), 1.0 + n) for n in range(4)},
    "other": {"of": [rank, "x"]},
    "buffers": {str(n): torch.full((n,), 1.0 * rank) for n in range(1, 4)},
}
if way == "odd" and rank == 1:
    state["alike"]["1"] = None  # no state dict has it, on one rank only
    state["sharded"] = type("", (), {"__reduce__": lambda _: 1 / 0})()
folder = CheckpointFolder(folder, 3, Ranks())
print(folder.save(4, state))
dist.destroy_process_group()
"""


WORLDS = {"one": 1, "three": 3, "odd": 2}
MODULES = (
    *("torch.distributed.tensor", "torch.distributed.checkpoint", "torch._dynamo"),
    "ft_run.training.checkpoints.folder",
)


def test_what_ranks_have_one_writes_or_all_say_that_they_cannot_agree(tmp_path: Path) -> None:
    calls = [
        (tmp_path / f"store-{way}", tmp_path / way, rank, size, way)
        for way, size in WORLDS.items()
        for rank in range(size)
    ]
    outputs = [ended.output.strip() for ended in run_forked(PROGRAM, calls, MODULES)]
    said: dict[str, list[str]] = {way: [] for way in WORLDS}
    for (*_, way), output in zip(calls, outputs, strict=True):
        said[way].append(output)
    for way in ("one", "three"):
        assert said[way] == ["None"] * WORLDS[way]
        check_checkpoint(tmp_path / way / "step-00000004", WORLDS[way])
    assert said["odd"][0] == said["odd"][1] not in ("None", "")
    assert list((tmp_path / "odd").glob("*")) == []


def check_checkpoint(path: Path, size: int) -> None:
    """Check that rank 0 alone writes values that several ranks have, and that all can be loaded."""
    files = {f"__{rank}_0.distcp" for rank in range(size)}
    assert {one.name for one in path.iterdir()} == {".ft_run", ".metadata", *files}
    reader = FileSystemReader(path)
    keys = reader.read_metadata().storage_data
    assert len({(info.relative_path, info.offset) for info in keys.values()}) == len(keys)
    written = sum(info.length for info in keys.values())
    assert sum((path / name).stat().st_size for name in files) < written + 64 * len(keys)
    state: dict[str, Any] = {"sharded": torch.zeros(10), "other.of": None}
    state |= {f"alike.{n}": torch.zeros(n) for n in range(4)}
    state |= {f"buffers.{n}": torch.ones(n) for n in range(1, 4)}
    with pytest.warns(UserWarning, match="single process"):
        load(state, storage_reader=reader)
    assert torch.equal(state["sharded"], torch.arange(10.0))
    assert all(torch.equal(state[f"alike.{n}"], torch.full((n,), 1.0 + n)) for n in range(4))
    assert state["other.of"] == [0, "x"]
    assert not any(state[f"buffers.{n}"].any() for n in range(1, 4))
