"""Trains with transformers' Trainer, saves, resumes; a plain loop says what must come out."""

import sys
from pathlib import Path

import plain
import torch
from torch.utils.data import DataLoader, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS, BATCH, LENGTH = 6, 4, 12


def network() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    nothing = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, **nothing)
    )


def dataset() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 32, (64, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class Fish(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 4:
            raise RuntimeError("the fish has bitten")


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def plain_loop(world: int) -> torch.nn.Module:
    """Train without ranks: each step sees the batches of all of them."""
    model = network()
    optimizer = sgd(model)
    batches = iter(
        DataLoader(
            dataset(),  # type: ignore[arg-type]  # a list will do
            batch_size=BATCH * world,
        )
    )
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**next(batches)).loss.backward()
        optimizer.step()
    return model


def main() -> None:
    folder, victim = Path(sys.argv[1]), int(sys.argv[2])
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        max_grad_norm=0.0,
        save_steps=2,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    trainer = InOrder(
        model,
        arguments,
        train_dataset=dataset(),
        optimizers=(optimizer, schedule),
        callbacks=[Fish()] if plain.dies_now(victim) else [],
    )
    trainer.model_accepts_loss_kwargs = False  # the plain mean, as below
    last = get_last_checkpoint(str(folder)) if folder.exists() else None
    trainer.train(resume_from_checkpoint=last)
    plain.report(
        model.parameters(),
        plain_loop(arguments.world_size).parameters(),
        launched_by=arguments.parallel_mode.value,
        resumed=last is not None,
        tolerance=1e-5,
    )


if __name__ == "__main__":
    main()
