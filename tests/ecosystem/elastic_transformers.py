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


def made(library, dropout):
    if library == "transformers-samples":
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


def train(library, folder, dropout, log):
    model, dataset = made(library, dropout)
    arguments = TrainingArguments(
        str(folder / "trainer"), use_cpu=True, num_train_epochs=elastic.EPOCHS, max_grad_norm=0.0,
        per_device_train_batch_size=elastic.MICRO_BATCH, remove_unused_columns=False,
        save_strategy="no", report_to=[], disable_tqdm=True, seed=elastic.SEED,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Recording(
        model,
        arguments,
        train_dataset=dataset,
        optimizers=(optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)),
        folder=folder / "checkpoints",
        global_batch=elastic.BATCH,
        checkpointer={"checkpoint_every": 1},
    )
    trainer.log_file = log
    trainer.train()
    return list(model.parameters()), arguments.process_index == 0


def expected(library):
    model, dataset = made(library, 0.0)

    def loss(model, batch):
        del batch["index"]
        return model(**batch)["loss"]

    elastic.plain_loop(model, dataset, loss, per_epoch=False)
    return list(model.parameters())
