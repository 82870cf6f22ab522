"""transformers' ``Trainer`` with ``ft_run.training.Checkpointer``: a crash costs one step.

    ft-run --nproc-per-node 2 --max-restarts 2 examples/transformers_snapshots.py checkpoints/

``Trainer`` skips completed batches when it resumes from a folder. Here the folder contains only its
counters; ``Checkpointer`` restores the weights and the rest before.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from ft_run.training import Checkpointer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerState

BATCH, STEPS, LENGTH = 4, 30, 12


class Restored(Trainer):
    """Resumes with objects that are already restored, and skips completed batches."""

    def _load_from_checkpoint(self, *_: object) -> None: ...
    def _load_optimizer_and_scheduler(self, *_: object) -> None: ...


class Snapshots(TrainerCallback):
    """Takes a snapshot at the end of each step."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer

    def on_step_begin(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        """Seed by the step, so that no generator state needs saving."""
        torch.manual_seed(state.global_step * 1000 + args.process_index)

    def on_step_end(self, _: Any, state: TrainerState, *__: Any, **___: Any) -> None:
        """Take a snapshot; weights, optimizer and schedule have completed the step."""
        self.checkpointer.step(state.global_step)


def main() -> None:
    """Train, resuming from an earlier run if there was one."""
    arguments = TrainingArguments(
        f"{sys.argv[1]}/trainer", use_cpu=True, max_steps=STEPS, per_device_train_batch_size=BATCH,
        save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 32, (64, LENGTH), generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
    trainer = Restored(
        model,
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        optimizers=(optimizer, schedule),
    )
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    checkpointer = Checkpointer(sys.argv[1], state)
    done = checkpointer.restore()
    trainer.add_callback(Snapshots(checkpointer))
    folder = Path(arguments.output_dir, f"restored-{arguments.process_index}")
    folder.mkdir(parents=True, exist_ok=True)
    counted = TrainerState(global_step=done, train_batch_size=arguments.train_batch_size)
    counted.save_to_json(str(folder / "trainer_state.json"))
    trainer.train(resume_from_checkpoint=str(folder) if done else None)
    checkpointer.wait()
    if arguments.process_index == 0:
        print(f"steps: {done} to {trainer.state.global_step}")


if __name__ == "__main__":
    main()
