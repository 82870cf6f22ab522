"""A small training for ``benchmarks/preload.py``: its ranks write the time of each step.

    preload_worker.py ddp|lightning|transformers FOLDER

Two rounds train until a rank is killed, the third for a few steps.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

NAME = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
STEPS = 3 if NAME.startswith("2") else 1_000_000
STEP_S = 0.05


class Steps:
    """The file with the times of the steps of this rank."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"steps-{NAME}").open("w")
        (folder / f"pid-{NAME}").write_text(str(os.getpid()))

    def done(self) -> None:
        """Write the time of a step, and the CPU time so far."""
        self._file.write(f"{time.time()} {time.process_time()}\n")
        self._file.flush()
        time.sleep(STEP_S)


def ddp(steps: Steps, folder: Path) -> None:
    """Train with DistributedDataParallel and ``Checkpointer``."""
    import torch
    from ft_run.training.checkpointer import Checkpointer
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpointer = Checkpointer(
        folder / "checkpoints", {"model": model, "optimizer": optimizer}, checkpoint_every=None
    )
    first = checkpointer.restore()
    for step in checkpointer.steps(first + STEPS):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.done()
        if step + 1 == first + STEPS:
            break
    torch.distributed.destroy_process_group()


def lightning(steps: Steps, folder: Path) -> None:
    """Train with Lightning."""
    import torch
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):  # type: ignore[misc]  # where it is not installed
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def training_step(self, batch: torch.Tensor, _: int) -> Any:
            return self.layer(batch).square().mean()

        def on_train_batch_end(self, *_: object) -> None:
            steps.done()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=STEPS,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    data: Any = torch.randn(100_000, 64)
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))


def transformers(steps: Steps, folder: Path) -> None:
    """Train a small GPT-2 with transformers."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback
    from transformers import TrainingArguments as Arguments

    class Write(TrainerCallback):  # type: ignore[misc]  # where it is not installed
        def on_step_end(self, *_: object, **__: object) -> None:
            steps.done()

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    tokens = torch.randint(0, 64, (100_000, 16))
    Trainer(
        GPT2LMHeadModel(config),
        Arguments(
            str(folder / "out"),
            max_steps=STEPS,
            per_device_train_batch_size=4,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[Write()],
    ).train()


if __name__ == "__main__":
    where = Path(sys.argv[2])
    {"ddp": ddp, "lightning": lightning, "transformers": transformers}[sys.argv[1]](
        Steps(where), where
    )
