"""Callbacks of Lightning whose hooks of checkpoints are not called."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

AVERAGE = """
import os, signal, sys
import torch
from ft_run.training.lightning import fit
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.utils.data import DataLoader, TensorDataset

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, _):
        return (self.layer(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

class Kill(Callback):
    def on_train_batch_end(self, trainer, *_):
        is_first = sys.argv[2] == "kill" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if is_first and trainer.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

module = Module()
inputs = torch.randn(32, 2, generator=torch.Generator().manual_seed(1))
trainer = Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
    callbacks=[EMAWeightAveraging(decay=0.8), Kill()],
)
loader = DataLoader(TensorDataset(inputs), batch_size=4)
fit(trainer, module, loader, folder=sys.argv[1], global_batch=4, seed=2)
print("average", module.layer.weight.tolist(), module.layer.bias.tolist())
"""


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


@pytest.mark.slow
@pytest.mark.ecosystem
@pytest.mark.long
def test_averaged_weights_survive_a_kill(ft: "Launcher") -> None:
    pytest.importorskip("lightning.pytorch")
    script = ft.script(AVERAGE)
    averages = []
    for how in ("run", "kill"):
        job = ft.run("--standalone", "--max-restarts", 1, script, ft.folder / how, how)
        assert job.process.returncode == 0, job.stderr
        assert ("was killed by SIGKILL" in job.stderr) == (how == "kill")
        averages += [line for line in job.stdout.splitlines() if "average" in line]
    assert len(averages) == 2
    assert len(set(averages)) == 1
