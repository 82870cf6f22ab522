"""What the saver writes: DCP's files, whole or not at all, whatever ends it and whenever."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.launcher.saver.order import WriteOrder, WriteResult
from ft_run.launcher.saver.writing import write
from ft_run.training.checkpoints.checkpoint_files import metadata_of, offsets_of, plan_of
from ft_run.training.checkpoints.encoding import flatten
from ft_run.training.checkpoints.kinds import Kinds
from ft_run.training.checkpoints.layout import Description, digest, read_record
from ft_run.training.checkpoints.snapshot_file import SnapshotFile
from ft_run.training.checkpoints.snapshot_store import Snapshots
from ft_run.training.worker.snapshot_memory import Memory
from ft_run.training.worker.snapshot_page import BUFFERS, PAGE_BYTES, Destination, Entry
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load

# Writes one checkpoint after the other, each in a process that dies before the n-th call that
# changes the folder, for each n; says what is to be seen after each death.
DEATHS = """
import json, os, shutil, sys
from ft_run.launcher.saver.order import WriteOrder
from ft_run.launcher.saver.writing import write
from ft_run.training.worker.snapshot_page import Destination, Entry

fd, data_bytes, layout_bytes = map(int, sys.argv[1:4])
folder = sys.argv[4]
NAMES = ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir", "open")
CALLS = {os: NAMES, shutil: ("rmtree",)}

def visible():
    seen = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.startswith("step-"):
            seen[name] = sorted(os.listdir(path))
    return seen

def dying(before):
    left = before
    def watched(function):
        def call(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), 9)
            return function(*args, **kwargs)
        return call
    for module, names in CALLS.items():
        for name in names:
            setattr(module, name, watched(getattr(module, name)))

def order(step):
    entry = Entry(step, 5, step, 1, 0, data_bytes, layout_bytes, True)
    return WriteOrder(Destination(folder, 2, True), (entry,), f"0-{step}", "job")

assert not write(order(1), [fd]).error and not write(order(2), [fd]).error
for number in range(1000):
    step = 3 + number
    pid = os.fork()
    if not pid:
        dying(number)
        os._exit(bool(write(order(step), [fd]).error))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(os.path.join(folder, "latest")) as file:
        print(json.dumps([status, step, file.read().strip(), visible()]), flush=True)
    # The next saver goes on, and leaves nothing of this one.
    assert not write(order(step), [fd]).error
    assert sorted(os.listdir(folder)) == ["latest", f"step-{step - 1:08}", f"step-{step:08}"]
    if not status:
        break
"""


class Snapshot:
    """A state in a buffer, as a worker leaves it."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.fd = os.memfd_create("test")
        self.file = SnapshotFile(self.fd)
        self.file.lay_out(state)

    def order(self, folder: Path, step: int, keep: int = 2, **more: Any) -> WriteOrder:
        entry = Entry(step, 5, step, 1, 0, self.file.data_bytes, self.file.layout_bytes, True)
        return WriteOrder(Destination(str(folder), keep, True), (entry,), f"0-{step}", **more)

    def save(self, folder: Path, step: int, **more: Any) -> WriteResult:
        return write(self.order(folder, step, **more), [self.fd])


def state_of(number: int) -> dict[str, Any]:
    tensors = {"weight": torch.full((50, 7), float(number)), "empty": torch.empty(0, 3)}
    return {"model": tensors, "sampler": {"epoch": number, "name": "x" * number}}


@pytest.fixture
def snapshot() -> Iterator[Snapshot]:
    made = Snapshot(state_of(1))
    yield made
    os.close(made.fd)


def loaded(path: Path) -> str:
    """Load with plain DCP."""
    dcp_to_torch_save(path, path.parent / "plain.pt")
    state = torch.load(path.parent / "plain.pt", weights_only=True)
    (path.parent / "plain.pt").unlink()
    return str(state)


def overwrite(snapshot: Snapshot, number: int) -> None:
    values = snapshot.file.values_of(flatten(state_of(number)))
    assert values is not None
    assert snapshot.file.write(values) is None


def test_a_snapshot_becomes_a_checkpoint(tmp_path: Path, snapshot: Snapshot) -> None:
    for number in (1, 2, 3):  # overwritten in place: the metadata is that of the first
        overwrite(snapshot, number)
        written = snapshot.save(tmp_path / "new", number)
        assert (written.error, written.path) == ("", str(tmp_path / f"new/step-{number:08}"))
        files = (tmp_path / "new" / f"step-{number:08}").iterdir()
        assert written.bytes == sum(file.stat().st_size for file in files)
        assert loaded(tmp_path / f"new/step-{number:08}") == str(state_of(number))
    assert sorted(os.listdir(tmp_path / "new")) == ["latest", "step-00000002", "step-00000003"]
    assert (tmp_path / "new/latest").read_text() == "step-00000003\n"


def test_shares_that_do_not_fit_together_are_no_checkpoint(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    other = Snapshot(state_of(1))
    both = (snapshot, other)
    plans = [plan_of(state_of(1))[0] for _ in both]
    places = [offsets_of(plan, one.file.items) for plan, one in zip(plans, both, strict=True)]
    digests = tuple(digest(one.file.items) for one in both)
    snapshot.file.describe(Description(metadata_of(plans, places), digests))

    def save(step: int) -> str:
        sizes = [(one.file.data_bytes, one.file.layout_bytes) for one in both]
        entries = tuple(Entry(0, 5, step, 2, rank, *size, False) for rank, size in enumerate(sizes))
        order = WriteOrder(Destination(str(tmp_path), 2, True), entries, "0")
        return write(order, [one.fd for one in both]).error

    assert save(1) == ""
    assert sorted(os.listdir(tmp_path / "step-00000001")) == [
        ".ft_run",
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
    ]
    assert loaded(tmp_path / "step-00000001") == str(state_of(1))
    other.file.lay_out({"model": {"weight": torch.ones(3)}})
    words = "its ranks had not yet agreed on the layout of their files"
    assert save(2) == words
    other.file.lay_out(state_of(1))
    assert save(3) == ""
    snapshot.file.lay_out(state_of(1), is_whole=False)
    assert save(4) == words
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-00000001", "step-00000003"]
    os.close(other.fd)


def test_equal_objects_are_in_one_file_only(tmp_path: Path) -> None:
    """Each rank has an average of its own beside a model that all have."""
    states = [{**state_of(9), "average": {"weight": torch.full((9,), 2.0 + r)}} for r in (0, 1)]
    states[1]["sampler"]["of"] = {"rank": 1}  # only rank 1 has it
    fds = [[os.memfd_create("test") for _ in range(1 + BUFFERS)] for _ in states]
    ranks = []
    for rank, made in enumerate(fds):
        os.ftruncate(made[0], PAGE_BYTES)
        kinds = Kinds(rank, 2, frozenset({"average"}), has_local=True)
        page, *buffers = map(os.dup, made)
        memory = Memory(page, buffers, -1)
        ranks.append(Snapshots(memory, rank, 2, 5, kinds))

    def save(step: int) -> list[int]:
        entries = []
        for one, state in zip(ranks, states, strict=True):
            assert one.write(step, partial(dict, state), flatten(state)) is None
        plans = [one.plan(state, flatten(state)) for one, state in zip(ranks, states, strict=True)]
        ranks[0].use_plans(plans, step)
        for one, made in zip(ranks, fds, strict=True):
            of_step = [*one._of(step)]
            entries.append((of_step[0][1], made[1 + of_step[0][0]]))
        order = WriteOrder(Destination(str(tmp_path), 2, True), tuple(e for e, _ in entries), "0")
        assert write(order, [fd for _, fd in entries]).error == ""
        path = tmp_path / f"step-{step:08}"
        assert [entry.data_bytes > 5000 for entry, _ in entries] == [True, True]
        first, second = (one["average"] for one in states)
        names = [f"ft_run_local.{rank}-of-2.average" for rank in (0, 1)]
        assert loaded(path) == str({names[0]: first, **state_of(9), names[1]: second})
        record = read_record((path / ".ft_run").read_bytes())
        sizes = [(path / f"__{rank}_0.distcp").stat().st_size for rank in (0, 1)]
        assert [record.files[f"__{rank}_0.distcp"][-1][0] for rank in (0, 1)] == sizes
        return sizes

    sizes = save(1)
    assert sizes[1] < 2000 < sizes[0]
    for state in states:
        state["average"]["weight"] += 1
    assert save(2) == sizes
    for fd in (fd for made in fds for fd in made):
        os.close(fd)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_tensor_of_8_gib(tmp_path: Path) -> None:
    """Its size and the offset of what follows need more than 32 bits. Takes 17 GB of memory."""
    rows = 2**13
    large = torch.zeros(rows, 2**20, dtype=torch.uint8)
    snapshot = Snapshot({"model": {"before": torch.zeros(3), "large": large, "later": large[0]}})
    large += torch.arange(rows).remainder(251).to(torch.uint8)[:, None]
    state = {"model": {"before": torch.ones(3), "large": large, "later": large[9]}}
    values = snapshot.file.values_of(flatten(state))
    assert values is not None
    assert snapshot.file.write(values) is None
    assert not snapshot.save(tmp_path, 1).error
    snapshot.file.clear()
    os.close(snapshot.fd)
    large.zero_()
    state = {
        "model": {"before": torch.zeros(3), "large": large, "later": torch.zeros_like(large[0])}
    }
    load(state, storage_reader=FileSystemReader(tmp_path / "step-00000001"), no_dist=True)
    assert state["model"]["before"].tolist() == [1, 1, 1]
    assert set(state["model"]["later"].tolist()) == {9}
    assert all(set(large[row, :: 2**12].tolist()) == {row % 251} for row in range(rows))
    assert not (large != large[:, :1]).any(dim=1).any()


def test_nothing_gets_its_name_before_it_is_durable(
    tmp_path: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the machine loses its power: the order of the system calls, as they are made."""
    durable: set[str] = set()
    named: list[str] = []

    def fsync(fd: int, real: Any = os.fsync) -> None:
        real(fd)
        durable.add(os.readlink(f"/proc/self/fd/{fd}"))

    def rename(old: Any, new: Any, real: Any = os.rename) -> None:
        assert str(old) in durable, f"{old} becomes {new}"
        folder = str(Path(new).parent)
        durable.discard(folder)  # its entries have changed
        named.append(str(new))
        real(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", rename)
    assert snapshot.save(tmp_path, 1).error == ""
    draft = tmp_path / ".step-00000001.0-1.writing"
    assert named == [
        str(draft / "__0_0.distcp"),
        str(draft / ".ft_run"),
        str(draft / ".metadata"),
        str(tmp_path / "step-00000001"),
        str(tmp_path / "latest"),
    ]
    assert str(tmp_path) in durable


def test_what_is_as_new_stays(tmp_path: Path, snapshot: Snapshot) -> None:
    assert snapshot.save(tmp_path, 5).bytes
    before = (tmp_path / "step-00000005").stat().st_ino
    for step in (4, 5):
        assert snapshot.save(tmp_path, step, unless_newer=True).bytes == 0
    assert (tmp_path / "step-00000005").stat().st_ino == before
    assert snapshot.save(tmp_path, 6, unless_newer=True).bytes
    assert snapshot.save(tmp_path, 5).bytes  # the steps were done once more
    assert (tmp_path / "step-00000005").stat().st_ino != before
    assert (tmp_path / "latest").read_text() == "step-00000005\n"


def test_files_have_the_mode_that_the_umask_says(tmp_path: Path, snapshot: Snapshot) -> None:
    before = os.umask(0o027)
    try:
        snapshot.save(tmp_path / "new", 1)
    finally:
        os.umask(before)
    for path in (tmp_path / "new").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640)


def test_a_buffer_that_is_too_short_is_no_checkpoint(tmp_path: Path, snapshot: Snapshot) -> None:
    order = snapshot.order(tmp_path, 1)
    os.ftruncate(snapshot.fd, 10)
    assert "mmap length is greater than file size" in write(order, [snapshot.fd]).error
    assert os.listdir(tmp_path) == []


def test_whenever_it_dies_each_visible_checkpoint_is_whole(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    size = (str(snapshot.fd), str(snapshot.file.data_bytes), str(snapshot.file.layout_bytes))
    command = (sys.executable, "-c", DEATHS, *size, str(tmp_path / "kept"))
    child = subprocess.run(command, pass_fds=[snapshot.fd], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    lives = [json.loads(line) for line in child.stdout.splitlines()]
    whole = [".ft_run", ".metadata", "__0_0.distcp"]
    for status, step, latest, visible in lives:
        assert status == (-9 if step < lives[-1][1] else 0)
        assert all(files == whole for files in visible.values())
        assert latest in visible
        assert f"step-{step - 1:08}" in visible  # the last complete one stays
    assert len(lives) > 15
    # Some died before it was there, some after it was there and before older ones were removed.
    numbers = {len(visible) for _, _, _, visible in lives[:-1]}
    assert numbers == {2, 3}
    last = tmp_path / f"kept/step-{lives[-1][1]:08}"
    assert loaded(last) == str(state_of(1))
