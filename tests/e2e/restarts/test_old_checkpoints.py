"""Checkpoints of earlier versions of ft-run are resumed."""

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

OLD = Path(__file__).with_name("old_checkpoints")


@pytest.mark.long
@pytest.mark.parametrize(("name", "ranks"), [("plain", 1), ("ddp", 2)])
def test_old_checkpoint_resumes(ft: "Launcher", name: str, ranks: int) -> None:
    """Weights, Adam, the position in the data, and the values and generators of each rank."""
    shutil.copytree(OLD / name, ft.folder / "resumed")

    def trained(folder: str) -> list[list[Any]]:
        arguments = (OLD / "train.py", ft.folder / folder, 8)
        forked = ("--preload", "torch,torch._dynamo")  # importing takes longer than the training
        command = ft.run("--standalone", "--nproc-per-node", ranks, *forked, *arguments)
        assert command.wait() == 0, command.stderr
        return sorted(map(json.loads, command.stdout.splitlines()))

    undisturbed, resumed = trained("undisturbed"), trained("resumed")
    assert [row[1] for row in undisturbed] == [0] * ranks
    assert [row[1] for row in resumed] == [4] * ranks
    for mine, expected in zip(resumed, undisturbed, strict=True):
        assert mine[3:] == expected[3:]
        for value, wanted in zip(mine[2], expected[2], strict=True):
            assert _numbers(value) == pytest.approx(_numbers(wanted), rel=1e-4)  # another processor


def _numbers(value: Any) -> list[float]:
    return [float(number) for number in re.findall(r"[-+.e0-9]+", str(value))]
