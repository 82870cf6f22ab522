"""The file in a buffer: DCP reads it, also after its values were overwritten in place."""

import gc
import mmap
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.training.checkpoints.checkpoint_files import LayoutMismatchError
from ft_run.training.checkpoints.encoding import flatten
from ft_run.training.checkpoints.snapshot_file import SnapshotFile
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.state_dict_loader import load

New = Callable[[], SnapshotFile]


def can_collapse() -> bool:
    """Return whether the kernel knows ``MADV_COLLAPSE`` (Linux 6.1), and may do it."""
    major, minor = os.uname().release.split(".")[:2]
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    is_allowed = setting.exists() and "[deny]" not in setting.read_text()
    return is_allowed and (int(major), int(minor)) >= (6, 1)


@pytest.fixture
def new() -> Iterator[New]:
    """Makes files in memory."""
    fds: list[int] = []

    def make() -> SnapshotFile:
        fds.append(os.memfd_create("test"))
        return SnapshotFile(fds[-1])

    yield make
    for fd in fds:
        os.close(fd)


def odd_state(number: int) -> dict[str, Any]:
    """Return tensors and values of all kinds; the same kinds for each number."""
    base = torch.arange(24, dtype=torch.float32) + number
    shared = torch.full((5,), float(number))
    return {
        "model": {
            "weight": base.view(4, 6).clone(),
            "transposed": base.view(4, 6).t(),
            "part": base[3:7],
            "every other": base[::2],
            "scalar": torch.tensor(number, dtype=torch.int64),
            "nothing": torch.empty(0, 3),
            "flags": torch.tensor([True, bool(number % 2)]),
            "half": torch.full((3, 3), number / 3, dtype=torch.bfloat16),
            "complex": torch.tensor([complex(number, 1)]),
            "tied": shared,
            "also tied": shared,
            "grad": (torch.ones(2) * number).requires_grad_(),
            "expanded": torch.tensor([float(number)]).expand(3),
        },
        "sampler": {"epoch": number, "seen": list(range(number % 7)), "name": "x" * (number % 50)},
        "list": {"of": [1, {"tensor": torch.ones(2) * number}, None]},
        "none": {"value": None},
    }


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def overwrite(file: SnapshotFile, flat: dict[str, Any]) -> None:
    values = file.values_of(flat)
    assert values is not None
    assert file.write(values) is None


def content(file: SnapshotFile) -> dict[str, Any]:
    return {item.key: file.read(index) for index, item in enumerate(file.items)}


def read_by_dcp(file: SnapshotFile, state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Put the bytes into a folder, beside metadata as DCP makes them, and load them with DCP."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    plan = planner.create_local_plan()
    _, metadata = planner.create_global_plan([plan])
    metadata.storage_data = {
        write.index: _StorageInfo("__0_0.distcp", item.start, item.length)
        for write, item in zip(plan.items, file.items, strict=True)
    }
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    data = bytes(file.all_bytes[: file.data_bytes].tolist())
    (folder / "__0_0.distcp").write_bytes(data)
    loaded = flatten(odd_state(99))
    for name, value in loaded.items():
        loaded[name] = torch.zeros_like(value) if isinstance(value, torch.Tensor) else "?"
    load(loaded, storage_reader=FileSystemReader(folder), no_dist=True)
    return loaded


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_reads_what_was_overwritten(new: New, tmp_path: Path) -> None:
    file = new()
    file.lay_out(odd_state(3))
    for number in (3, 4, 48, 11):
        if number != 3:
            overwrite(file, flatten(odd_state(number)))
        expected = flatten(odd_state(number))
        loaded = read_by_dcp(file, odd_state(number), tmp_path)
        assert [key for key, value in expected.items() if not is_same(value, loaded[key])] == []
        mine = content(file)
        assert [key for key, value in expected.items() if not is_same(value, mine[key])] == []


def test_a_file_that_was_left_is_read_as_it_was(new: New) -> None:
    file = new()
    file.lay_out(odd_state(3))
    overwrite(file, flatten(odd_state(5)))
    again = SnapshotFile(file._fd)
    again.open(file.data_bytes, file.layout_bytes)
    assert again.items == file.items
    assert again.values_of(flatten(odd_state(9))) is not None
    expected = flatten(odd_state(5))
    assert [k for k, value in content(again).items() if not is_same(value, expected[k])] == []


def test_a_copy_is_overwritten_apart_from_the_first(new: New) -> None:
    first, second = new(), new()
    first.lay_out(odd_state(1))
    second.copy(first)
    overwrite(second, flatten(odd_state(2)))
    for file, number in ((first, 1), (second, 2)):
        expected = flatten(odd_state(number))
        assert [k for k, value in content(file).items() if not is_same(value, expected[k])] == []


def test_what_fits_a_file(new: New) -> None:
    file = new()
    file.lay_out({"a": torch.ones(2, 3), "b": 1})
    assert file.values_of({"a": torch.zeros(2, 3), "b": "another"}) is not None
    for other in (
        {"a": torch.zeros(3, 2), "b": 1},
        {"a": torch.zeros(2, 3, dtype=torch.float64), "b": 1},
        {"a": 2, "b": 1},
        {"a": torch.zeros(2, 3), "b": torch.zeros(1)},
        {"a": torch.zeros(2, 3)},
        {"a": torch.zeros(2, 3), "b": 1, "c": 1},
        {"a": torch.zeros(2, 3), "c": 1},
    ):
        assert file.values_of(other) is None, other


def test_a_value_that_has_grown_beyond_its_slot_does_not_fit(new: New) -> None:
    file = new()
    file.lay_out({"a": "x"})
    overwrite(file, {"a": "x" * 100})
    with pytest.raises(LayoutMismatchError):
        overwrite(file, {"a": "x" * 10_000})


def test_ten_thousand_small_tensors(new: New) -> None:
    state = {str(n): torch.tensor([float(n)]) for n in range(10_000)}
    file = new()
    file.lay_out(state)
    overwrite(file, {name: value + 0.5 for name, value in state.items()})
    assert all(value.item() == float(name) + 0.5 for name, value in content(file).items())


def test_what_is_not_trusted_is_plain_data(new: New) -> None:
    file = new()
    file.lay_out({"plain": {"a": [1, 2.5, "x", None]}, "code": Path("x")})
    assert file.read(0, is_trusted=False) == [1, 2.5, "x", None]
    with pytest.raises(pickle.UnpicklingError):
        file.read(1, is_trusted=False)


def test_a_file_with_a_hole_has_memory_when_it_is_opened() -> None:
    """Or a write into the hole, when there is no memory, would end the worker."""
    fd = os.memfd_create("test")
    file = SnapshotFile(fd)
    file.lay_out({"weight": torch.ones(1 << 18)})
    length = file.data_bytes + file.layout_bytes
    with mmap.mmap(fd, length) as memory:
        memory.madvise(mmap.MADV_REMOVE, 1 << 16, 1 << 16)
    assert os.fstat(fd).st_blocks * 512 < length
    SnapshotFile(fd).open(file.data_bytes, file.layout_bytes)
    assert os.fstat(fd).st_blocks * 512 >= length
    os.close(fd)


def huge_kib() -> int:
    """Return how much of this process's shared memory is in huge pages, in KiB."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("ShmemPmdMapped:"))


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_file_is_in_huge_pages_for_each_process(new: New, *, is_copied: bool) -> None:
    state = {"a": torch.ones(3 << 20), "b": torch.ones(7)}
    file = new()
    file.lay_out(state)
    if is_copied:
        first, file = file, new()
        file.copy(first)
        del first
    sizes = file.data_bytes, file.layout_bytes
    assert os.fstat(file._fd).st_size == sum(sizes)
    fd = os.dup(file._fd)
    del file
    before = huge_kib()
    left = SnapshotFile(fd)
    left.open(*sizes)
    assert all(is_same(value, flatten(state)[key]) for key, value in content(left).items())
    if can_collapse():
        assert huge_kib() - before >= 12 << 10
    os.close(fd)


def test_a_view_keeps_the_memory_mapped(new: New) -> None:
    file = new()
    file.lay_out({"a": torch.arange(1 << 20)})
    view = content(file)["a"]
    file.clear()
    gc.collect()
    before = Path("/proc/self/maps").read_text().count("memfd:test")
    assert before == 1
    del view
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("memfd:test") == 0
