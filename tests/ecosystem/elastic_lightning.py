"""What ``elastic.py`` trains with Lightning."""

import os

import elastic
import torch
from ft_run.training.lightning import fit
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader


class Module(LightningModule):
    def __init__(self, dropout, log) -> None:
        super().__init__()
        self.network = elastic.network(dropout)
        self.log_file = log

    def training_step(self, batch, _):
        self.log_file.note(self.global_step, batch["index"])
        return nn.functional.mse_loss(self.network(batch["x"]), batch["labels"])

    def validation_step(self, batch, _):
        torch.rand(3)  # must not change what the next step draws

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}}


def train(library, folder, dropout, log):
    module = Module(dropout, log)
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=elastic.EPOCHS,
        val_check_interval=0.5,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    dataset = elastic.Numbers()
    fit(
        trainer,
        module,
        DataLoader(dataset, batch_size=elastic.MICRO_BATCH, shuffle=True),
        folder=folder / "checkpoints",
        global_batch=elastic.BATCH,
        seed=elastic.SEED,
        val_dataloaders=DataLoader(dataset, batch_size=8),
        checkpointer={"checkpoint_every": 1},
    )
    return list(module.parameters()), trainer.is_global_zero


def expected(library):
    model = elastic.network(0.0)
    loss = lambda model, batch: nn.functional.mse_loss(model(batch["x"]), batch["labels"])  # noqa: E731
    elastic.plain_loop(model, elastic.Numbers(), loss, per_epoch=True)
    return list(model.parameters())
