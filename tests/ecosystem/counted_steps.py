"""Trains with one library under ``--watch-workers``, and compares the counted steps with its own.

Each case trains a little and returns how many steps the loop, or the library, has counted itself.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import plain
import torch
import torch.distributed as dist
from ft_run.training.worker.page_layout import STEPS
from torch import nn
from torch.utils.data import DataLoader

EPOCHS, BATCHES = 2, 8
"""Of all cases: 16 batches."""


def page() -> Any:
    """Return the page of this worker."""
    return sys.modules["_ft_run_hook"].progress.__self__._page


def batches() -> Any:
    for _ in range(EPOCHS):
        yield from DataLoader(plain.dataset(), batch_size=plain.BATCH)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, each: int = 1) -> int:
    """Step after so many batches each; return how many steps that are."""
    steps = 0
    for number, batch in enumerate(batches(), start=1):
        loss_of(model, batch).backward()
        if number % each == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return steps


# --- torch --------------------------------------------------------------------------------------


def ddp() -> int:
    model = nn.parallel.DistributedDataParallel(plain.network())
    return loop(model, sgd(model))


def fsdp2() -> int:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = plain.network()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return loop(model, torch.optim.AdamW(model.parameters(), foreach=True))


def accumulation() -> int:
    model = plain.network()
    return loop(model, torch.optim.Adam(model.parameters()), each=4)


def zero_redundancy() -> int:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(plain.network())
    return loop(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))


def post_local_sgd() -> int:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = plain.network()
    averager = PeriodicModelAverager(period=4, warmup_steps=2)
    return loop(model, PostLocalSGDOptimizer(sgd(model), averager))


def two_optimizers() -> int:
    """As of a GAN: both step for each batch."""
    models = plain.network(), plain.network()
    optimizers = [sgd(model) for model in models]
    steps = 0
    for batch in batches():
        for model, optimizer in zip(models, optimizers, strict=True):
            loss_of(model, batch).backward()
            optimizer.step()
        steps += 1
    return steps


def critic_steps_more_often() -> int:
    """As of a WGAN: the generator steps for every fourth batch; a step is one of the critic."""
    critic, generator = plain.network(), plain.network()
    first, second = sgd(critic), sgd(generator)
    steps = 0
    for number, batch in enumerate(batches(), start=1):
        loss_of(critic, batch).backward()
        first.step()
        steps += 1
        if number % 4 == 0:
            loss_of(generator, batch).backward()
            second.step()
    return steps


def one_for_each_parameter() -> int:
    """Optimizers that step within the backward pass, as those that save memory do."""
    model = plain.network()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.05)

        def step(_: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    steps = 0
    for batch in batches():
        loss_of(model, batch).backward()
        steps += 1
    return steps


def new_for_each_batch() -> int:
    """As the inner loop of a meta-learner, which is its only one here."""
    model, steps = plain.network(), 0
    for batch in batches():
        loss_of(model, batch).backward()
        sgd(model).step()
        steps += 1
    return steps


class SignDescent(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad.sign()


def own_subclass() -> int:
    model = plain.network()
    return loop(model, SignDescent(model.parameters()))


def compiled() -> int:
    model = plain.network()
    optimizer = torch.optim.Adam(model.parameters())
    step = torch.compile(optimizer.step, backend="eager")
    steps = 0
    for batch in batches():
        loss_of(model, batch).backward()
        step()
        steps += 1
    return steps


def compiled_whole() -> int:
    model = plain.network()
    optimizer = torch.optim.Adam(model.parameters())

    @torch.compile(backend="eager")
    def train_step(inputs: torch.Tensor, wanted: torch.Tensor) -> None:
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    steps = 0
    for batch in batches():
        train_step(*batch)
        steps += 1
    return steps


def lbfgs() -> int:
    model = plain.network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    steps = 0
    for batch in batches():

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)
        steps += 1
    return steps


def skipped_by_the_scaler() -> int:
    """A step that the scaler leaves out, as of gradients that are no numbers, is none."""
    model = plain.network()
    optimizer, scaler, steps = sgd(model), torch.amp.GradScaler("cpu"), 0
    for number, batch in enumerate(batches()):
        scaler.scale(loss_of(model, batch) * (float("inf") if number == 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        steps += number != 3
    return steps


def as_lists(samples: Any) -> Any:
    return [tuple(part.tolist() for part in sample) for sample in samples]


def data_loader_workers() -> int:
    """Processes of the worker's own, with torch in them; what they send needs no socket."""
    model = plain.network()
    optimizer, steps = sgd(model), 0
    loader = DataLoader(plain.dataset(), plain.BATCH, num_workers=2, collate_fn=as_lists)
    for samples in loader:
        inputs, wanted = (torch.tensor(part) for part in zip(*samples, strict=True))
        loss_of(model, (inputs, wanted)).backward()
        optimizer.step()
        steps += 1
    return steps


TORCH: tuple[Callable[[], int], ...] = (
    ddp,
    fsdp2,
    accumulation,
    zero_redundancy,
    post_local_sgd,
    two_optimizers,
    critic_steps_more_often,
    new_for_each_batch,
    own_subclass,
    compiled,
    compiled_whole,
    lbfgs,
    skipped_by_the_scaler,
    data_loader_workers,
    one_for_each_parameter,  # at the end: torch never lets go of its optimizers
)


# --- libraries ----------------------------------------------------------------------------------


def lightning(accumulate: int) -> int:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = plain.network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return loss_of(self.network, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        use_distributed_sampler=False,
        max_epochs=EPOCHS,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(plain.dataset(), batch_size=plain.BATCH))
    return int(trainer.global_step)


def transformers(accumulate: int) -> int:
    import transformers_stack
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(Path(sys.argv[2])),
        use_cpu=True,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    data = transformers_stack.dataset()
    trainer = Trainer(transformers_stack.network(), arguments, train_dataset=data)
    trainer.train()
    return int(trainer.state.global_step)


def accelerate(accumulate: int) -> int:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = plain.network()
    model, optimizer, loader = accelerator.prepare(
        model, sgd(model), DataLoader(plain.dataset(), batch_size=plain.BATCH)
    )
    steps = 0
    for _ in range(EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
    return steps


def cases(library: str) -> dict[str, Callable[[], int]]:
    if library == "torch":
        return {case.__name__: case for case in TORCH}
    train = {"lightning": lightning, "transformers": transformers, "accelerate": accelerate}
    return {f"{library}, accumulating {each}": partial(train[library], each) for each in (1, 3)}


def main() -> None:
    library = sys.argv[1]
    if library == "torch":
        dist.init_process_group("gloo")
    found = {}
    for name, case in cases(library).items():
        before = page()[STEPS]
        own = case()
        found[name] = [page()[STEPS] - before, own]
        # The next one is as a script of its own, in which these optimizers never were.
        torch.compiler.reset()
        gc.collect()
    told = json.dumps({"rank": os.environ["RANK"], "steps": found})
    print(f"result {told}\n", end="", flush=True)  # in one write: those of two ranks do not mix
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
