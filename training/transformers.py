"""transformers' ``Trainer`` whose steps have the same samples after restarts and resizes."""

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer
from transformers.trainer_callback import ExportableState, TrainerState

from .data.parts import Part
from .data.schedule import Last
from .library_loop import LibraryBatches, LibraryLoop

_COUNTED = (
    "best_global_step",
    "best_metric",
    "best_model_checkpoint",
    "num_input_tokens_seen",
    "total_flos",
)
"""Counters of ``TrainerState`` other than steps, the same on all ranks."""


class ElasticTrainer(Trainer):
    """``Trainer`` that loses at most a step, and has the same samples in each step.

    ``train`` resumes automatically. ``gradient_accumulation_steps`` follows from ``global_batch``,
    ``per_device_train_batch_size`` and the current number of ranks. ``args.seed`` seeds each step,
    and ``args.data_seed`` the order of the samples.

    For a trainer of another library: ``class Mine(ElasticTrainer, SFTTrainer): ...``.
    """

    _batches: LibraryBatches | None = None
    _loop: LibraryLoop | None = None
    _parts: Iterator[Part] = iter(())

    def __init__(
        self,
        *args: Any,
        folder: "str | os.PathLike[str]",
        global_batch: int,
        last: Last | None = None,
        checkpointer: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Create the trainer.

        Args:
            *args: arguments of the trainer.
            folder: directory of the checkpoints; a path or a URL that all ranks can reach.
            global_batch: samples per step, over all ranks.
            last: as for ``ElasticBatches``; None for ``drop`` with ``dataloader_drop_last``, else
                ``short``.
            checkpointer: additional arguments of ``Checkpointer``, e.g. ``{"keep": 5}``.
            **options: arguments of the trainer.

        Raises:
            ValueError: If the configuration of the trainer does not allow it.
        """
        super().__init__(*args, **options)
        self._folder, self._global_batch = folder, global_batch
        self._options = {**(checkpointer or {}), "seed": self.args.seed}
        self._last: Last = last or ("drop" if self.args.dataloader_drop_last else "short")
        _check(self)

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """Train, from the newest snapshot or checkpoint if there is one.

        Raises:
            RuntimeError: If the last checkpoint could not be written.
            ValueError: If the state was saved with other batches, or ``resume_from_checkpoint`` is
                given.
        """
        if resume_from_checkpoint:
            raise ValueError(
                f"invalid value {resume_from_checkpoint!r} for resume_from_checkpoint: expected "
                "None; training resumes from the folder of the trainer by itself"
            )
        args = self.args
        self._batches = batches = LibraryBatches(
            super().get_train_dataloader(),
            self._global_batch,
            micro_batch=args.per_device_train_batch_size,
            shuffle=getattr(args, "train_sampling_strategy", "random") != "sequential",
            seed=args.seed if args.data_seed is None else args.data_seed,
            last=self._last,
        )
        args.gradient_accumulation_steps = batches.parts
        if args.max_steps <= 0 and self._last == "carry" and args.num_train_epochs % 1 == 0:
            args.max_steps = batches.data.total(int(args.num_train_epochs))
        steps = math.ceil(args.num_train_epochs * batches.steps_per_epoch)
        self.create_optimizer()
        self.create_scheduler(num_training_steps=args.max_steps if args.max_steps > 0 else steps)
        self._created_lr_scheduler = False  # otherwise it would be created again
        counted = _Counted(self)
        state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.lr_scheduler,
            "trainer": counted,
        }
        if getattr(self.accelerator, "scaler", None) is not None:
            state["scaler"] = self.accelerator.scaler
        self._loop = LibraryLoop(self._folder, state, batches, self._options)
        with ExitStack() as self._until_begun:
            resume = None
            if self._loop.completed:
                resume = self._until_begun.enter_context(tempfile.TemporaryDirectory())
                counted.write(resume, self._loop.completed)
            result = super().train(resume_from_checkpoint=resume, **options)
        self._finish()
        return result

    def get_train_dataloader(self) -> Any:
        """Return the batches that the loop counts and skips; ``get_batch_samples`` reads them."""
        if self._batches is None:
            return super().get_train_dataloader()
        loader = self._batches.loader
        return DataLoader(
            loader.dataset, batch_sampler=_Counting(self._batches), collate_fn=loader.collate_fn
        )

    def get_batch_samples(self, _: Any, __: int, *device: Any) -> tuple[list[Any], Any]:
        """Return the batches of the next step; all work of the previous steps is done now."""
        assert self._batches is not None
        assert self._loop is not None
        self._until_begun.close()
        step = self.state.global_step
        if step >= self.state.max_steps:  # restarted after the last step
            return [], None
        self._loop.complete(step)
        parts = list(self._batches.read(step, self.model))
        self._parts = iter(parts)
        batches = [part.batch for part in parts]
        # Batches that only keep collectives in step have no tokens. All ranks count.
        counted = [part.batch if part.samples else _ignored(part.batch) for part in parts]
        _, number = super().get_batch_samples(iter(counted), len(counted), *device)
        return batches, number

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None, **options: Any
    ) -> torch.Tensor:
        """Compute the gradients of a batch, weighted unless the library counts its tokens."""
        part = next(self._parts)
        is_scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if is_scaled is None:
            is_scaled = self.compute_loss_func is not None or (
                self.model_accepts_loss_kwargs and num_items_in_batch is not None
            )
        assert self._batches is not None
        # The library divides by the number of batches.
        factor = float(part.samples > 0) if is_scaled else part.weight * self._batches.parts
        backward = self.accelerator.backward
        self.accelerator.backward = lambda loss, **named: backward(loss * factor, **named)
        try:
            with part.memory():
                loss = super().training_step(model, inputs, num_items_in_batch, **options)
        finally:
            del self.accelerator.backward  # restores the method of the class
        return loss * factor

    def _finish(self) -> None:
        assert self._loop is not None
        self._loop.finish(self.state.global_step)

    def _load_best_model(self) -> None:
        self._finish()  # the last step has other weights
        super()._load_best_model()

    def _load_from_checkpoint(self, *_: Any, **__: Any) -> None:
        """Do nothing: the weights are restored."""

    def _load_optimizer_and_scheduler(self, *_: Any) -> None:
        """Do nothing: they are restored."""

    def _load_rng_state(self, *_: Any) -> None:
        """Do nothing: each step is seeded."""


class _Counted:
    """Counters of a trainer and its callbacks besides steps, e.g. ``EarlyStoppingCallback``."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._restored: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        state = self._trainer.state
        return {
            "counted": ({name: getattr(state, name, None) for name in _COUNTED},),
            "callbacks": (
                [(type(one).__name__, one.state()["attributes"]) for one in self._callbacks()],
            ),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (self._restored,) = state["counted"]
        for one, (name, attributes) in zip(self._callbacks(), state["callbacks"][0], strict=False):
            if type(one).__name__ == name:
                vars(one).update(attributes)

    def write(self, folder: str, step: int) -> None:
        """Write a checkpoint in the library's format that has counters only."""
        args, control = self._trainer.args, self._trainer.control
        state = TrainerState(
            global_step=step,
            train_batch_size=args.train_batch_size,
            stateful_callbacks=[*self._callbacks(), control],
        )
        for name in ("logging_steps", "eval_steps", "save_steps"):  # it warns if others differ
            setattr(state, name, getattr(args, name))
        for name, value in self._restored.items():
            setattr(state, name, value)
        state.save_to_json(str(Path(folder, "trainer_state.json")))

    def _callbacks(self) -> list[Any]:
        callbacks = self._trainer.callback_handler.callbacks
        return [one for one in callbacks if isinstance(one, ExportableState)]


class _Counting(Sampler[list[int]]):
    """A sampler with as many batches as an epoch of the library."""

    def __init__(self, batches: LibraryBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return self._batches.steps_per_epoch * self._batches.parts

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches.data.batches(0, self._batches.steps_per_epoch)


def _ignored(batch: Any) -> Any:
    """Return a batch in which no label counts."""
    if not isinstance(batch, Mapping):
        return batch
    return {
        name: torch.full_like(value, -100)
        if name in ("labels", "shift_labels") and isinstance(value, torch.Tensor)
        else value
        for name, value in batch.items()
    }


def _check(trainer: Any) -> None:
    args, accelerator = trainer.args, trainer.accelerator
    wrapper = accelerator.distributed_type.value
    wrong = {
        "gradient_accumulation_steps": (args.gradient_accumulation_steps, 1),
        "average_tokens_across_devices": (args.average_tokens_across_devices, True),
        "auto_find_batch_size": (args.auto_find_batch_size, False),
        "dataloader_in_order": (getattr(args, "dataloader_in_order", True), True),
        "group_by_length": (getattr(args, "group_by_length", False), False),
        "model_init": (trainer.model_init, None),
        "args.n_gpu": (args.n_gpu if args.n_gpu > 1 else 1, 1),
        "parallelism_config": (getattr(accelerator, "parallelism_config", None), None),
    }
    for name, (value, expected) in wrong.items():
        if value != expected:
            raise ValueError(
                f"invalid value {value!r} for {name}: expected {expected!r} with ElasticTrainer"
            )
    strategy = getattr(args, "train_sampling_strategy", "random")
    if strategy not in ("random", "sequential"):
        raise ValueError(
            f"invalid value {strategy!r} for train_sampling_strategy: expected random or "
            "sequential with ElasticTrainer"
        )
    if wrapper in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "TP"):
        raise ValueError(
            f"invalid configuration of accelerate: {wrapper}, which wraps the model and the "
            "optimizer itself: expected DDP or one process; use its own checkpoints"
        )
