"""Checkpoints that were changed after they were written, and other content of their folder."""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.tests.harness.forked import run_forked
from ft_run.tests.harness.log_lines import logged
from ft_run.tests.training.conftest import Given
from ft_run.training import Checkpointer
from ft_run.training.checkpoints.layout import read_record, record_of, tag_of
from torch import nn
from torch.optim import Adam

SEED = 20261128


class Script:
    """A training script with several kinds of values."""

    def __init__(self, folder: "Path | str", **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        optimizer = Adam(self.model.parameters(), lr=0.1)
        self.notes = {"steps": 0, "names": ["a", "b"]}
        state = {"model": self.model, "optimizer": optimizer, "notes": self.notes}
        options = {"checkpoint_every": 2, "position": "step", **options}
        self.checkpointer = Checkpointer(folder, state, **options)
        self.optimizer = optimizer

    def train(self, total: int) -> "Script":
        for number in self.checkpointer.steps(total):
            torch.manual_seed(number)
            self.optimizer.zero_grad()
            self.model(torch.randn(5, 4)).square().sum().backward()
            self.optimizer.step()
            self.notes["steps"] = number + 1
        return self


def resumed_at(folder: "Path | str", **options: Any) -> int:
    script = Script(folder, **options)
    done = script.checkpointer.restore()
    assert script.notes["steps"] == done
    return done


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder with the checkpoints of steps 2 and 4."""
    Script(tmp_path / "kept").train(4)
    return tmp_path / "kept"


def newest(folder: Path) -> Path:
    return folder / "step-00000004"


@pytest.mark.parametrize("is_url", [False, True])
def test_damage_of_any_byte_is_detected(
    tmp_path: Path, trained: Path, capfd: pytest.CaptureFixture[str], is_url: bool
) -> None:
    """Fifty random places are flipped or cut: each time the previous checkpoint is used."""
    choose = random.Random(SEED)
    files = sorted(newest(trained).iterdir())
    assert [file.name for file in files] == [".ft_run", ".metadata", "__0_0.distcp"]
    capfd.readouterr()
    for number in range(50):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(trained, folder)
        # The files with the values are larger, but the others are damaged as often.
        name = choose.choice(files).name if number % 2 else files[-1].name
        path = newest(folder) / name
        data = bytearray(path.read_bytes())
        place = choose.randrange(len(data))
        if choose.random() < 0.3:
            del data[place:]
        else:
            data[place] ^= 1 << choose.randrange(8)
        path.write_bytes(data)
        assert resumed_at(f"file://{folder}" if is_url else folder) == 2, (name, place)
        (line, resumed) = logged(capfd)
        assert re.fullmatch(
            r"checkpoint \S+/step-00000004 is damaged: .*; renamed to \S+\.corrupt; trying the "
            r"previous one",
            line,
        )
        assert resumed == "resuming from the checkpoint of step 2"
        kept = folder / "step-00000004.corrupt"
        assert (newest(folder) / ".metadata.corrupt" if is_url else kept).exists()
        assert resumed_at(f"file://{folder}" if is_url else folder) == 2
        capfd.readouterr()
        shutil.rmtree(folder)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("is_url", [False, True])
def test_training_never_starts_again_without_an_error(trained: Path, is_url: bool) -> None:
    """All checkpoints are damaged: an error in each start until they are removed."""
    for step in (2, 4):
        flip(trained / f"step-{step:08}" / "__0_0.distcp")
    folder = f"file://{trained}" if is_url else trained
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the newest one is damaged: .*step-0"):
            resumed_at(folder)
    for path in trained.glob("step-*"):
        shutil.rmtree(path)
    assert resumed_at(folder) == 0


def test_snapshot_is_used_if_it_is_newer_than_the_checkpoint_that_is_left(
    trained: Path, tmp_path: Path, memory: Given
) -> None:
    checkpoint = newest(trained)
    checkpoint.rename(tmp_path / "later")
    memory(-1)
    script = Script(trained, checkpoint_every=None)
    script.train(3)
    (tmp_path / "later").rename(checkpoint)
    flip(checkpoint / "__0_0.distcp")
    memory(3, is_first_round=False)
    assert resumed_at(trained) == 3


@pytest.mark.root
def test_read_only_storage_does_not_keep_the_previous_checkpoint_from_use(
    tmp_path: Path, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flip(newest(trained) / "__0_0.distcp")
    mount = tmp_path / "read-only"
    mount.mkdir()
    subprocess.run(["mount", "--bind", str(trained), str(mount)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(mount)], check=True)
        capfd.readouterr()
        assert resumed_at(mount, checkpoint_every=None) == 2
        assert "it could not be renamed: [Errno 30] Read-only file system" in logged(capfd)[0]
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_checkpoint_without_checksums_is_read(trained: Path) -> None:
    (newest(trained) / ".ft_run").unlink()
    assert resumed_at(trained) == 4
    metadata = newest(trained) / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-100])
    assert resumed_at(trained) == 2


def test_cut_checkpoint_without_checksums_is_set_aside(trained: Path) -> None:
    (newest(trained) / ".ft_run").unlink()
    os.truncate(newest(trained) / "__0_0.distcp", 3000)
    assert resumed_at(trained) == 2


def test_names_that_are_no_checkpoints_are_ignored(trained: Path) -> None:
    (trained / "step-00000050").write_text("a file")
    os.mkfifo(trained / "step-00000060")
    (trained / f"step-{10**20}").mkdir()
    for name in ("step-00000050", "step-00000060"):
        os.utime(trained / name, (0, 0))  # older than what a start removes
    Script(trained, keep=1).train(6)
    assert resumed_at(trained) == 6
    assert sorted(path.name for path in trained.iterdir()) == [
        "latest",
        "step-00000006",
        "step-00000050",
        "step-00000060",
        f"step-{10**20}",
    ]


def test_linked_checkpoint_is_loaded_and_unlinked(tmp_path: Path, trained: Path) -> None:
    """The link is removed as an old checkpoint, its target stays."""
    newest(trained).rename(tmp_path / "elsewhere")
    newest(trained).symlink_to(tmp_path / "elsewhere")
    assert resumed_at(trained) == 4
    Script(trained, keep=1).train(6)
    assert sorted(path.name for path in trained.iterdir()) == ["latest", "step-00000006"]
    assert (tmp_path / "elsewhere/.metadata").exists()


def test_link_without_target_is_an_error(trained: Path) -> None:
    (trained / "step-00000009").symlink_to("gone")
    with pytest.raises(RuntimeError, match=r"step-00000009 cannot be loaded: \[Errno 2\] No such"):
        resumed_at(trained)


@pytest.mark.root
def test_old_checkpoint_that_cannot_be_removed_is_one_warning(
    trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = trained / "step-00000002"
    subprocess.run(["mount", "-t", "tmpfs", "none", str(old)], check=True)
    capfd.readouterr()
    try:
        Script(trained, keep=1).train(8)
    finally:
        subprocess.run(["umount", str(old)], check=True)
    lines = logged(capfd)
    assert [line for line in lines if "not saved" in line] == []
    (line,) = [line for line in lines if "could not be removed" in line]
    assert line == (
        f"an old checkpoint could not be removed: {old}: [Errno 16] Device or resource busy: "
        f"'{old}' -> '{trained}/.step-00000002.removing'"
    )
    assert sorted(path.name for path in trained.glob("step-*")) == [old.name, "step-00000008"]


@pytest.mark.parametrize(("began", "expected"), [(0.0, 1), (float("inf"), 0)])
def test_newer_checkpoint_of_another_job_is_one_warning(
    trained: Path,
    memory: Given,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    began: float,
    expected: int,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
    memory(-1, is_first_round=False)
    script = Script(trained)
    script.checkpointer._snapshots.job_began = began
    capfd.readouterr()
    assert script.checkpointer.restore() == 4
    lines = [line for line in logged(capfd) if "another job" in line]
    assert len(lines) == expected
    new_process()
    memory(-1, is_first_round=False)
    Script(trained).train(6)
    record = read_record((trained / "step-00000006/.ft_run").read_bytes())
    assert (record.job, record.host) == ("mine", os.uname().nodename)


def test_record_is_compared_with_its_checksum() -> None:
    data = record_of("job", "attempt", {"file": [(5, 7)]})
    assert {name: [*map(list, read)] for name, read in read_record(data).files.items()} == {
        "file": [[5, 7]]
    }
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 4
        with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
            read_record(bytes(flipped))


def test_drafts_of_two_jobs_have_different_names(tmp_path: Path) -> None:
    assert tag_of("one") != tag_of("two")
    assert tag_of("") == ""


RANKS = """
import sys
from os import environ
import torch
import torch.distributed as dist
from torch import nn
from ft_run.training import Checkpointer

store, folder, rank, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
environ.update(RANK=str(rank), LOCAL_RANK="0")  # each is a node
dist.init_process_group("gloo", f"file://{store}", world_size=2, rank=rank)
model = nn.Linear(2, 2)
every = int(every) if every != "none" else None
try:
    checkpointer = Checkpointer(folder, {"model": model}, checkpoint_every=every, position="step")
    for _ in checkpointer.steps(int(sys.argv[5])):
        pass
    print("done")
except RuntimeError as error:
    print(error)
dist.destroy_process_group()
"""


Nodes = tuple[str, list[Path], "int | str", int]
"""A name, the folder of each node, ``checkpoint_every``, the number of steps."""


def on_two_nodes(tmp_path: Path, *pairs: Nodes) -> list[list[str]]:
    """Run two nodes for each pair, all at the same time; return what each printed."""
    calls = [
        (tmp_path / f"store-{name}", folder, rank, every, steps)
        for name, folders, every, steps in pairs
        for rank, folder in enumerate(folders)
    ]
    ended = [one.output.strip() for one in run_forked(RANKS, calls, ("torch._dynamo",))]
    return [ended[2 * number : 2 * number + 2] for number in range(len(pairs))]


def test_folder_of_each_node_is_refused(tmp_path: Path) -> None:
    """At the start, and if nothing is written, when a checkpoint is read."""
    checked, mine = [tmp_path / "first", tmp_path / "second"], tmp_path / "mine"
    found, trained = on_two_nodes(tmp_path, ("check", checked, 2, 4), ("train", [mine, mine], 2, 4))
    host = os.uname().nodename
    assert found[0] == found[1]
    assert found[0].startswith(
        f"the folder {checked[1]} is not shared: {host} does not see what {host} wrote; expected"
    )
    assert list(tmp_path.glob("*/.step*")) == []
    assert trained == ["done", "done"]
    empty, other = tmp_path / "empty", tmp_path / "other"
    shutil.copytree(mine, other)
    (other / "step-00000004/.ft_run").unlink()
    with (other / "step-00000004/.metadata").open("ab") as file:
        file.write(b"other")
    loaded, differing = on_two_nodes(
        tmp_path, ("load", [mine, empty], "none", 6), ("differ", [mine, other], "none", 6)
    )
    for words in loaded:
        assert "step-00000004 cannot be loaded: [Errno 2] No such file" in words
        assert f"'{empty}/step-00000004/.metadata'" in words
    for words in differing:
        assert "cannot be loaded: rank 1 reads another one there than rank 0" in words


def test_damage_that_one_rank_reads_is_noticed_by_all(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    assert on_two_nodes(tmp_path, ("train", [folder, folder], 2, 4)) == [["done", "done"]]
    flip(folder / "step-00000004/__0_0.distcp")
    assert on_two_nodes(tmp_path, ("load", [folder, folder], "none", 6)) == [["done", "done"]]
    assert (folder / "step-00000004.corrupt").exists()
