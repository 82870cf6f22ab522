"""transformers' ``Trainer`` with ``ft_run.training``: kill or resize, each step has its samples.

ft-run --nproc-per-node 2 --max-restarts 2 examples/transformers_snapshots.py checkpoints/
"""

import sys

import torch
from ft_run.training.transformers import ElasticTrainer
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

LENGTH = 12


def main() -> None:
    """Train, resuming from an earlier run if there was one."""
    arguments = TrainingArguments(
        f"{sys.argv[1]}/trainer", use_cpu=True, num_train_epochs=3, per_device_train_batch_size=4,
        save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, seed=1,
    )  # fmt: skip
    config = GPT2Config(vocab_size=32, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    rows = torch.randint(0, 32, (68, LENGTH), generator=torch.Generator().manual_seed(1))
    trainer = ElasticTrainer(
        model,
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        folder=sys.argv[1],
        global_batch=8,
    )
    trainer.train()
    if arguments.process_index == 0:
        print(f"steps: {trainer.state.global_step}")


if __name__ == "__main__":
    main()
