"""What ``elastic.py`` trains with transformers: with the mean over tokens, and over samples."""

import elastic
import torch
from ft_run.training.transformers import ElasticTrainer
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments


class Line(nn.Module):
    def __init__(self, dropout) -> None:
        super().__init__()
        self.network = elastic.network(dropout)

    def forward(self, x, labels):
        return {"loss": nn.functional.mse_loss(self.network(x), labels)}


class Recording(ElasticTrainer):
    log_file: elastic.Log

    def training_step(self, model, inputs, *args, **options):
        self.log_file.note(self.state.global_step, inputs.pop("index"))
        return super().training_step(model, inputs, *args, **options)

    def log(self, logs, *args, **options):
        if "loss" in logs:  # of the step that is done
            self.log_file.note_loss(self.state.global_step - 1, float(logs["loss"]))
        super().log(logs, *args, **options)


def made(library, dropout):
    if "tokens" not in library:
        return Line(dropout), elastic.Numbers()
    torch.manual_seed(0)
    drops = {"attn_pdrop": dropout, "embd_pdrop": dropout, "resid_pdrop": dropout}
    config = GPT2Config(
        vocab_size=elastic.WORDS, n_positions=elastic.LENGTH, n_embd=8, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0, **drops,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double()
    model.loss_type = "ForCausalLM"  # otherwise the library also counts tokens without a target
    return model, elastic.Sentences()


def make_trainer(library, folder, model, dataset, *, batch=elastic.BATCH, **options):
    last = elastic.last_of(library)
    arguments = TrainingArguments(
        str(folder / "trainer"), use_cpu=True, max_grad_norm=0.0, seed=elastic.SEED,
        per_device_train_batch_size=elastic.MICRO_BATCH, remove_unused_columns=False,
        dataloader_drop_last=last == "drop", save_strategy="no", report_to=[], disable_tqdm=True,
        logging_steps=1, optim="sgd", learning_rate=0.1, **options,
    )  # fmt: skip
    optimizer = scheduler = None  # the library makes them
    if "tokens" not in library:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return Recording(
        model,
        arguments,
        train_dataset=dataset,
        optimizers=(optimizer, scheduler),
        folder=folder / "checkpoints",
        global_batch=batch,
        last="carry" if last == "carry" else None,
        checkpointer={"checkpoint_every": 1},
    )


def train(library, folder, dropout, log):
    model, dataset = made(library, dropout)
    limit = {"max_steps": 11} if "max" in library else {"num_train_epochs": elastic.EPOCHS}
    trainer = make_trainer(library, folder, model, dataset, **limit)
    trainer.log_file = log
    trainer.train()
    return list(model.parameters()), trainer.args.process_index == 0


def expected(library):
    model, dataset = made(library, 0.0)

    def loss(model, batch):
        del batch["index"]
        return model(**batch)["loss"]

    def decaying(step):
        return 0.1 * 0.9**step

    def linear(step):
        return 0.1 * (1 - step / 12)

    rate, momentum = (linear, 0.0) if "tokens" in library else (decaying, 0.9)
    return elastic.plain_loop(library, model, dataset, loss, rate, momentum)


def check_refused(library, folder):
    model, dataset = made(library, 0.0)

    def refused(message, **options):
        with elastic.refused(message):
            make_trainer(library, folder, model, dataset, **options).train()

    refused("invalid value 2 for gradient_accumulation", gradient_accumulation_steps=2)
    refused("invalid value True for auto_find", auto_find_batch_size=True)
    refused("invalid value 'group_by_length'", train_sampling_strategy="group_by_length")
    refused("invalid value False for average_tokens", average_tokens_across_devices=False)
    refused("invalid value of global_batch", batch=elastic.BATCH + 1, num_train_epochs=3)
    with elastic.refused("invalid value True for resume_from"):
        make_trainer(library, folder, model, dataset).train(resume_from_checkpoint=True)
