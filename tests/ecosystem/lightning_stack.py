"""Trains with Lightning, saves each epoch, resumes; a plain loop says what must come out."""

import sys
from pathlib import Path

import plain
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Module(LightningModule):
    def __init__(self, die: bool) -> None:
        super().__init__()
        self.network = plain.network()
        self.die = die

    def training_step(self, batch, index):
        if self.die and self.current_epoch == 1 and index == 2:
            raise RuntimeError("the fish has bitten")
        return nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        return plain.sgd(self)


def main() -> None:
    folder, victim = Path(sys.argv[1]), int(sys.argv[2])
    seed_everything(0, verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        use_distributed_sampler=False,
        max_epochs=plain.EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, save_last=True, save_on_train_epoch_end=True)],
    )
    data, last = plain.dataset(), folder / "last.ckpt"
    resumed = last.exists()
    sampler: DistributedSampler = DistributedSampler(
        data, num_replicas=trainer.world_size, rank=trainer.global_rank, shuffle=False
    )
    module = Module(plain.dies_now(victim))
    trainer.fit(
        module,
        DataLoader(data, batch_size=plain.BATCH, sampler=sampler),
        ckpt_path=last if resumed else None,
    )
    plain.report(
        module.network.parameters(),
        plain.plain_loop(trainer.world_size).parameters(),
        launched_by=type(trainer.strategy.cluster_environment).__name__,
        resumed=resumed,
    )


if __name__ == "__main__":
    main()
