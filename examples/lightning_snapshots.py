"""Lightning with ``ft_run.training``: kill or resize, each step has its samples.

ft-run --nproc-per-node 2 --max-restarts 2 examples/lightning_snapshots.py checkpoints/
"""

import os
import sys

import torch
from ft_run.training.lightning import fit
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(LightningModule):
    """A tiny network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    """Train, resuming from an earlier run if there was one."""
    inputs = torch.randn(520, 16, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    torch.manual_seed(0)
    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    fit(trainer, module, loader, folder=sys.argv[1], global_batch=16, seed=1)
    if trainer.is_global_zero:
        print(f"steps: {trainer.global_step}")


if __name__ == "__main__":
    main()
