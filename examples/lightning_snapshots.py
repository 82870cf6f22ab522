"""Lightning with ``ft_run.training.Checkpointer``: a crash costs one step, no batch is repeated.

    ft-run --nproc-per-node 2 --max-restarts 2 examples/lightning_snapshots.py checkpoints/

The loops of Lightning are part of the state and are restored before ``fit``, which resumes from
there. Lightning does not skip completed batches of the epoch; the sampler does.
"""

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from ft_run.training import Checkpointer
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, EPOCHS = 8, 3


class Module(LightningModule):
    """A tiny network. It creates its optimizer before ``fit``, so that it can be restored."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch; randomness is seeded by the step."""
        torch.manual_seed(self.global_step * 1000 + self.global_rank)
        return nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer that was restored."""
        return self.optimizer


class Resuming(DistributedSampler[Any]):
    """Skips completed samples of an epoch, once."""

    done = 0
    """Completed samples of this rank."""

    def __iter__(self) -> Iterator[Any]:
        done, self.done = self.done, 0
        return itertools.islice(super().__iter__(), done, None)


class Snapshots(Callback):
    """Takes a snapshot at the end of each step."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Take a snapshot; the restored loop has counted this batch."""
        self.checkpointer.step(trainer.global_step)


def main() -> None:
    """Train, resuming from an earlier run if there was one."""
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    inputs = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    sampler = Resuming(data, world, rank)
    torch.manual_seed(0)
    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        devices=world,
        strategy=DDPStrategy(process_group_backend="gloo"),
        use_distributed_sampler=False,
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    state = {"model": module, "optimizer": module.optimizer, "loop": trainer.fit_loop}
    checkpointer = Checkpointer(sys.argv[1], state)
    done = checkpointer.restore()
    sampler.done = done % (len(sampler) // BATCH) * BATCH
    trainer.callbacks.append(Snapshots(checkpointer))
    trainer.fit(module, DataLoader(data, BATCH, sampler=sampler))
    checkpointer.wait()
    if rank == 0:
        print(f"steps: {done} to {trainer.global_step}, loss {trainer.callback_metrics}")


if __name__ == "__main__":
    main()
