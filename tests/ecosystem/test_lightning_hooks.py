"""Callbacks of Lightning whose hooks of checkpoints are not called."""

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.long
def test_callbacks_and_modules_with_a_hook_are_named_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("lightning.pytorch")
    from ft_run.training.lightning import _averages, _warn_of_hooks
    from lightning.pytorch import Callback, LightningModule
    from lightning.pytorch.callbacks import EMAWeightAveraging

    hook = {"on_save_checkpoint": lambda *_: None}
    notes, module = type("Notes", (Callback,), hook)(), type("Module", (LightningModule,), hook)()
    average = EMAWeightAveraging()
    average._average_model = object()
    trainer: Any = SimpleNamespace(callbacks=[Callback(), notes, average])
    _warn_of_hooks(trainer, module)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith(
        "on_save_checkpoint is not called, and its additions are not saved: Notes (expected "
        "state_dict and load_state_dict), Module (expected get_extra_state and set_extra_state)"
    )
    _warn_of_hooks(SimpleNamespace(callbacks=[Callback(), average]), LightningModule())
    assert capfd.readouterr().err == ""
    assert _averages(trainer) == {"average2": average._average_model}
