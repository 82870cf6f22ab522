"""A warning for a training that resumes and reads its data again from the start."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.tests.harness.log_lines import logged
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader


def train(folder: Path, steps: int, more: dict[str, Any], **arguments: Any) -> None:
    """Train from the last checkpoint on, with a loader."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = {"model": model, "optimizer": optimizer, "schedule": StepLR(optimizer, 3), **more}
    checkpointer = Checkpointer(folder, state, **arguments)
    data: Any = list(range(4))
    for _ in zip(checkpointer.steps(steps), DataLoader(data), strict=False):
        pass  # only the iterator of the loader is left


WARNING = (
    "resumed at step 2, but the state has no position in the data, so a DataLoader starts with its "
    "first batch again: see docs/guide/data.md; if the samples follow from the step, pass "
    'position="step" to Checkpointer'
)


@pytest.mark.parametrize(
    ("more", "arguments", "warns"),
    [
        ({}, {}, True),
        ({"scaler": torch.amp.GradScaler("cpu")}, {"seed": 1}, True),
        ({}, {"position": "step"}, False),
        ({"data": ElasticBatches(4, 2)}, {}, False),
        ({"progress": {"epoch": 1}}, {}, False),
    ],
)
def test_a_loop_without_a_position(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    more: dict[str, Any],
    arguments: dict[str, Any],
    warns: bool,
) -> None:
    train(tmp_path, 2, more, **arguments)
    assert WARNING not in logged(capfd)
    train(tmp_path, 4, more, **arguments)
    assert logged(capfd).count(WARNING) == warns


def test_a_process_without_a_loader(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gc.collect()  # the loaders of other tests
    for steps in (2, 4):
        for _ in Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}).steps(steps):
            pass
    assert not any("position in the data" in line for line in logged(capfd))


def test_another_position_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid value 'epoch' for position: expected 'step'"):
        train(tmp_path, 1, {}, position="epoch")
