"""What ``elastic.py`` trains with Lightning."""

import os

import elastic
import torch
from ft_run.training.lightning import fit
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Module(LightningModule):
    def __init__(self, dropout, log) -> None:
        super().__init__()
        self.network = elastic.network(dropout)
        self.notes = log

    def training_step(self, batch, _):
        self.notes.note(self.global_step, batch.pop("index"))
        return nn.functional.mse_loss(self.network(batch["x"]), batch["labels"])

    def validation_step(self, batch, _):
        torch.rand(3)  # must not change what the next step draws

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}}


class Validations(Callback):
    """Counts validations, also over restarts."""

    count = 0

    def on_validation_end(self, *_):
        self.count += 1

    def state_dict(self):
        return {"count": self.count, "some.path/of": torch.ones(2)}

    def load_state_dict(self, state):
        self.count = state["count"]


def make_trainer(**options):
    return Trainer(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"accelerator": "cpu", "devices": 1, **options},
    )


def train(library, folder, dropout, log):
    last = elastic.last_of(library)
    module = Module(dropout, log)
    validations = Validations()
    limit = {"max_steps": 11} if "max" in library else {"max_epochs": elastic.EPOCHS}
    trainer = make_trainer(
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="gloo"),
        val_check_interval=0.5,
        num_sanity_val_steps=0,
        callbacks=[validations],
        **limit,
    )
    dataset = elastic.Numbers()
    batch = elastic.MICRO_BATCH
    fit(
        trainer,
        module,
        DataLoader(dataset, batch_size=batch, shuffle=True, drop_last=last == "drop"),
        folder=folder / "checkpoints",
        global_batch=elastic.BATCH,
        seed=elastic.SEED,
        last="carry" if last == "carry" else None,
        val_dataloaders=DataLoader(dataset, batch_size=8),
        checkpointer={"checkpoint_every": 1},
    )
    assert trainer.callbacks[0] is validations
    if last == "short":
        assert validations.count == (5 if "max" in library else 2 * elastic.EPOCHS)
    # What loggers show as the step.
    assert trainer.fit_loop.epoch_loop._batches_that_stepped == trainer.global_step
    return list(module.parameters()), trainer.is_global_zero


def expected(library):
    model = elastic.network(0.0)

    def loss(model, batch):
        return nn.functional.mse_loss(model(batch["x"]), batch["labels"])

    per_epoch = 3 if elastic.last_of(library) == "drop" else 4
    return elastic.plain_loop(
        library, model, elastic.Numbers(), loss, lambda step: 0.1 * 0.9 ** (step // per_epoch)
    )


def check_refused(library, folder):
    dataset = elastic.Numbers()

    def refused(message, trainer, module=None, loader=None, batch=elastic.BATCH):
        loader = loader or DataLoader(dataset, batch_size=2, shuffle=True)
        with elastic.refused(message):
            fit(
                trainer,
                module or Module(0.0, None),
                loader,
                folder=folder / "checkpoints",
                global_batch=batch,
                last=elastic.last_of(library),
            )

    manual = Module(0.0, None)
    manual.automatic_optimization = False
    sampler: DistributedSampler = DistributedSampler(dataset, 1, 0)
    refused("invalid value 2 for accumulate_grad", make_trainer(accumulate_grad_batches=2))
    refused("invalid value 4 for limit_train", make_trainer(limit_train_batches=4))
    refused("invalid value False for automatic_opt", make_trainer(), manual)
    refused("without a sampler", make_trainer(), loader=DataLoader(dataset, sampler=sampler))
    refused("expected lightning.pytorch.Trainer", object())
    refused("invalid value of global_batch", make_trainer(max_epochs=3), batch=elastic.BATCH + 1)
