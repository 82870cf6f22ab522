"""The examples: training under plain Python, and checkpoints that cannot be half read.

How the launcher restarts them is tested end to end, elsewhere.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="the digits come with scikit-learn (extra: examples)",
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DIGITS = EXAMPLES / "train_digits.py"
WITH_CHECKPOINTER = EXAMPLES / "train_digits_snapshots.py"
EPOCH_LINE = re.compile(r"epoch (\d+)/(\d+) loss \d+\.\d{4} restarts (\d+)")


@pytest.fixture(scope="module")
def digits() -> Iterator[ModuleType]:
    """The example as a module; examples/ is no package."""
    spec = importlib.util.spec_from_file_location("train_digits", DIGITS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_digits"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["train_digits"]


def run(*args: str, cwd: Path, script: Path = DIGITS) -> subprocess.CompletedProcess[str]:
    """Run the example with plain Python on the CPU, free of a launcher's variables."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    return subprocess.run(
        [sys.executable, str(script), *args],
        cwd=cwd,
        # As beside other tests, where two threads of a small product wait for each other.
        env=env | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def sha256_line(output: str) -> str:
    match = re.search(r"^weights sha256: ([0-9a-f]{64})$", output, re.MULTILINE)
    assert match is not None, output
    return match[1]


def checkpoint(epoch: int) -> dict[str, Any]:
    import torch

    weights = torch.arange(1000, dtype=torch.float32) + epoch
    return {"epoch": epoch, "model": {"weight": weights}, "optimizer": {"state": {}}}


class TestTraining:
    @pytest.mark.slow  # for each change .ci/run trains it by README's command
    def test_learns_dies_resumes_and_ends_alike(self, tmp_path: Path) -> None:
        """One story, because a run costs seconds of imports."""
        undisturbed = run("--epochs", "6", "--die", "1:3", cwd=tmp_path)  # there is no rank 1

        assert undisturbed.returncode == 0, undisturbed.stderr
        epochs = [match[1] for match in EPOCH_LINE.finditer(undisturbed.stdout)]
        assert epochs == [str(epoch) for epoch in range(1, 7)]
        accuracy = re.search(r"^test accuracy: (0\.\d{4})$", undisturbed.stdout, re.MULTILINE)
        assert accuracy is not None, undisturbed.stdout
        assert float(accuracy[1]) > 0.95
        assert list(tmp_path.iterdir()) == []

        command = ("--epochs", "6", "--checkpoint-dir", "kept", "--die", "0:5")
        killed = run(*command, cwd=tmp_path)

        assert killed.returncode == -signal.SIGKILL
        assert killed.stdout.endswith("rank 0 sends itself SIGKILL in epoch 5\n")

        resumed = run(*command, cwd=tmp_path)

        assert resumed.returncode == 0, resumed.stderr
        assert resumed.stdout.startswith("resuming from kept/epoch-000004.pt\n")
        assert [match[1] for match in EPOCH_LINE.finditer(resumed.stdout)] == ["5", "6"]
        assert sha256_line(resumed.stdout) == sha256_line(undisturbed.stdout)

    @pytest.mark.slow
    def test_a_folder_that_holds_all_epochs_is_only_tested(self, tmp_path: Path) -> None:
        command = ("--epochs", "1", "--checkpoint-dir", "kept")
        first, again = run(*command, cwd=tmp_path), run(*command, cwd=tmp_path)

        assert again.returncode == 0, again.stderr
        assert EPOCH_LINE.search(again.stdout) is None
        assert sha256_line(again.stdout) == sha256_line(first.stdout)


@pytest.mark.slow  # for each change the tests of snapshots show it
def test_the_variant_with_a_checkpointer_dies_resumes_and_ends_alike(tmp_path: Path) -> None:
    undisturbed = run("--epochs", "3", cwd=tmp_path, script=WITH_CHECKPOINTER)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert list(tmp_path.iterdir()) == []
    command = ("--epochs", "3", "--checkpoint-dir", "kept", "--die", "0:3")
    killed = run(*command, cwd=tmp_path, script=WITH_CHECKPOINTER)
    assert killed.returncode == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "kept").glob("step-*")) == [
        "step-00000045",
        "step-00000090",
    ]
    resumed = run(*command, cwd=tmp_path, script=WITH_CHECKPOINTER)
    assert resumed.returncode == 0, resumed.stderr
    assert "epoch 2/3" not in resumed.stdout
    assert sha256_line(resumed.stdout) == sha256_line(undisturbed.stdout)


class TestDefaultFolder:
    def test_belongs_to_the_run(self, digits: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "team/../run 1")
        assert digits.default_folder() == Path("digits-checkpoints-team_.._run_1")

    def test_is_fresh_without_a_launcher(
        self, digits: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        assert digits.default_folder() != digits.default_folder()


class TestCheckpoints:
    def test_latest_wins_by_number(self, digits: ModuleType, tmp_path: Path) -> None:
        for epoch in (10, 9, 2):
            digits.save_checkpoint(tmp_path, checkpoint(epoch))

        latest = digits.load_latest_checkpoint(tmp_path)

        assert latest["epoch"] == 10
        assert latest["model"]["weight"].equal(checkpoint(10)["model"]["weight"])

    def test_nothing_there(self, digits: ModuleType, tmp_path: Path) -> None:
        assert digits.load_latest_checkpoint(tmp_path) is None

    def test_synced_before_and_after_the_rename(
        self, digits: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        real_fsync, real_replace = os.fsync, os.replace

        def fsync(fd: int) -> None:
            real_fsync(fd)
            calls.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")

        def replace(source: Path, target: Path) -> None:
            real_replace(source, target)
            calls.append(f"rename {source.name} {target.name}")

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)
        digits.save_checkpoint(tmp_path, checkpoint(3))

        assert calls == [
            "fsync epoch-000003.pt.tmp",
            "rename epoch-000003.pt.tmp epoch-000003.pt",
            f"fsync {tmp_path.name}",
        ]

    @pytest.mark.parametrize("stage", ["fsync", "replace"])
    def test_power_cut_while_writing_leaves_the_last_one(
        self, digits: ModuleType, tmp_path: Path, stage: str
    ) -> None:
        class PowerCutError(BaseException):
            pass

        def cut(*_: object) -> None:
            raise PowerCutError

        digits.save_checkpoint(tmp_path, checkpoint(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, stage, cut)
            with pytest.raises(PowerCutError):
                digits.save_checkpoint(tmp_path, checkpoint(2))

        assert digits.load_latest_checkpoint(tmp_path)["epoch"] == 1
        digits.save_checkpoint(tmp_path, checkpoint(2))
        assert digits.load_latest_checkpoint(tmp_path)["epoch"] == 2
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "epoch-000001.pt",
            "epoch-000002.pt",
        ]


def test_equal_weights_give_equal_bytes(digits: ModuleType) -> None:
    import torch

    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2)
    scattered = a.t().contiguous().t()
    assert not scattered.is_contiguous()

    data = digits.canonical_bytes({"a": a, "b": b})

    assert data == digits.canonical_bytes({"b": b, "a": scattered})
    assert data != digits.canonical_bytes({"a": a.reshape(3, 2), "b": b})
    assert data != digits.canonical_bytes({"a": a, "c": b})
    assert data != digits.canonical_bytes({"a": a, "b": b.double()})


@pytest.mark.long
def test_smoke_adds_up_all_ranks(tmp_path: Path) -> None:
    ft_run = Path(sys.executable).with_name("ft-run")
    command = (ft_run, "--standalone", "--nproc-per-node", "2", "--preload", "torch")
    done = subprocess.run(
        [*command, EXAMPLES / "smoke.py"], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert done.stdout.count(f"rank {rank} of 2: all-reduce ok") == 1
