"""Lightning's ``Trainer.fit`` with the same samples in each step after restarts and resizes."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from .data.schedule import Last
from .library_loop import LibraryBatches, LibraryLoop
from .worker.log import log

_AVERAGING: Any = getattr(callbacks, "WeightAveraging", None)
"""Since Lightning 2.6."""


def fit(
    trainer: Trainer,
    module: LightningModule,
    loader: "DataLoader[Any]",
    *,
    folder: "str | os.PathLike[str]",
    global_batch: int,
    seed: int = 0,
    last: Last | None = None,
    val_dataloaders: Any = None,
    checkpointer: Mapping[str, Any] | None = None,
) -> None:
    """Call ``trainer.fit``, resuming from the newest snapshot or checkpoint if there is one.

    ``accumulate_grad_batches`` follows from ``global_batch``, the batch size of the loader and the
    current number of ranks.

    Args:
        trainer: trainer of one process, or with DDP.
        module: module to train, with automatic optimization.
        loader: training data: its dataset, ``shuffle``, workers and ``collate_fn`` are used; its
            ``batch_size`` is the maximum number of samples that a rank computes at a time.
        folder: directory of the checkpoints; a path or a URL that all ranks can reach.
        global_batch: samples per step, over all ranks.
        seed: seed of the order of the samples, and of the random numbers of each step.
        last: as for ``ElasticBatches``; None for ``drop`` if the loader has ``drop_last``, else
            ``short``.
        val_dataloaders: validation data, as for ``trainer.fit``.
        checkpointer: additional arguments of ``Checkpointer``, e.g. ``{"keep": 5}``.

    Raises:
        RuntimeError: If the last checkpoint could not be written.
        ValueError: If the configuration of the trainer or the loader does not allow it, or the
            state was saved with other batches.
    """
    _check(trainer, module, loader)
    elastic = _Elastic(module, loader, folder, {**(checkpointer or {}), "seed": seed})
    elastic.arguments = {
        "global_batch": global_batch,
        "micro_batch": loader.batch_size,
        "shuffle": isinstance(loader.sampler, RandomSampler),
        "seed": seed,
        "last": last or ("drop" if loader.drop_last else "short"),
    }
    given, backward, training_step = trainer.callbacks, module.backward, module.training_step
    trainer.callbacks = [*given, elastic]

    def weighted(loss: Any, *args: Any, **options: Any) -> None:
        with elastic.memory():
            backward(loss * elastic.factor, *args, **options)

    @wraps(training_step)  # the library inspects its arguments
    def watched(*args: Any, **options: Any) -> Any:
        with elastic.memory():
            return training_step(*args, **options)

    module.backward, module.training_step = weighted, watched
    try:
        trainer.fit(module, _Batches(elastic), val_dataloaders)
    finally:
        trainer.callbacks = given
        del module.backward, module.training_step  # restores the methods of the class


class _Elastic(Callback):
    """Restores before the loop reads its position, and completes steps."""

    arguments: Mapping[str, Any]
    """Arguments of ``LibraryBatches``."""
    batches: LibraryBatches
    loop: LibraryLoop
    factor = 1.0
    """Factor of the current batch's loss."""
    memory: Callable[[], AbstractContextManager[None]]
    """``Part.memory`` of the current batch."""

    def __init__(
        self,
        module: LightningModule,
        loader: "DataLoader[Any]",
        folder: "str | os.PathLike[str]",
        options: Mapping[str, Any],
    ) -> None:
        self._module, self._loader, self._folder, self._options = module, loader, folder, options

    def setup(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Create the batches, now that the number of ranks is known."""
        self.trainer = trainer
        self.batches = LibraryBatches(self._loader, **self.arguments)
        trainer.accumulate_grad_batches = self.batches.parts

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        """Restore now, when optimizers exist and the loop has not started."""
        loop, batches = trainer.fit_loop, self.batches
        if loop.max_epochs is not None and loop.max_epochs > 0:
            total = batches.data.total(loop.max_epochs)
            if total < loop.max_epochs * batches.steps_per_epoch:  # with "carry"
                limit = loop.epoch_loop.max_steps
                loop.epoch_loop.max_steps = total if limit < 0 else min(total, limit)
        schedulers = [one.scheduler for one in trainer.lr_scheduler_configs]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        state = {
            "model": self._module,
            "optimizer": trainer.optimizers[0],
            "callbacks": _Callbacks(trainer),
            **_averages(trainer),
            **{f"scheduler{number}": one for number, one in enumerate(schedulers)},
            **({"scaler": scaler} if scaler is not None else {}),
        }
        if trainer.global_rank == 0:
            _warn_of_hooks(trainer, self._module)
        self.loop = LibraryLoop(self._folder, state, batches, self._options)
        if self.loop.completed:
            _set_position(trainer, self.loop.completed, batches)
        if loop.done:  # restarted after the last step
            self.loop.finish(self.loop.completed)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        self.loop.finish(trainer.global_step)

    def read(self) -> Iterator[Any]:
        """Iterate over batches; Lightning requests each after all previous ones are done."""
        while True:
            step = self.trainer.global_step
            self.loop.complete(step)
            # After a restart, Lightning may skip a repeated validation, but still count it.
            self.trainer.fit_loop.epoch_loop._batches_that_stepped = step
            for part in self.batches.read(step, self._module):
                self.memory = part.memory
                self.factor = part.weight * self.batches.parts  # Lightning divides by them
                yield part.batch


class _Batches:
    """An iterable: Lightning would replace the sampler of a DataLoader."""

    def __init__(self, elastic: _Elastic) -> None:
        self._elastic = elastic

    def __len__(self) -> int:
        batches = self._elastic.batches
        return batches.steps_per_epoch * batches.parts

    def __iter__(self) -> Iterator[Any]:
        return self._elastic.read()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the samples follow from the step."""
        return {}

    def load_state_dict(self, _: Mapping[str, Any]) -> None:
        """Do nothing; without these methods Lightning warns that it cannot resume."""


class _Callbacks:
    """The state of callbacks that have one, e.g. ``EarlyStopping``."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        states = {one.state_key: one.state_dict() for one in self._trainer.callbacks}
        return {"states": (deepcopy({key: state for key, state in states.items() if state}),)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (states,) = state["states"]
        for one in self._trainer.callbacks:
            if one.state_key in states:
                one.load_state_dict(deepcopy(states[one.state_key]))


def _averages(trainer: Trainer) -> dict[str, Any]:
    """Return the averaged models of ``WeightAveraging`` callbacks, which only their hooks save."""
    found = {}
    for number, one in enumerate(trainer.callbacks):
        if _AVERAGING is not None and isinstance(one, _AVERAGING):
            found[f"average{number}"] = one._average_model
    return found


def _warn_of_hooks(trainer: Trainer, module: LightningModule) -> None:
    """Log which callbacks, or the module, save data in Lightning's checkpoint hook."""
    hook = "on_save_checkpoint"
    found = []
    for one in trainer.callbacks:
        is_own = _AVERAGING is not None and isinstance(one, _AVERAGING)
        if not is_own and getattr(type(one), hook) is not getattr(Callback, hook):
            found.append(f"{type(one).__name__} (expected state_dict and load_state_dict)")
    if getattr(type(module), hook) is not getattr(LightningModule, hook):
        found.append(f"{type(module).__name__} (expected get_extra_state and set_extra_state)")
    if found:
        log(f"{hook} is not called, and its additions are not saved: {', '.join(found)}")


def _set_position(trainer: Trainer, step: int, batches: LibraryBatches) -> None:
    """Let the loops resume with a step, as from a checkpoint between two batches."""
    epoch, inside = divmod(step, batches.steps_per_epoch)
    loop, parts = trainer.fit_loop, batches.parts
    state = loop.state_dict()
    optimizer = state["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for progress, total, current in (
        (state["epoch_loop.batch_progress"], step * parts, inside * parts),
        (optimizer["step"], step, inside),
        (optimizer["zero_grad"], step, inside),
    ):
        progress["total"] = dict.fromkeys(progress["total"], total)
        progress["current"] = dict.fromkeys(progress["current"], current)
    begun = {"ready": epoch + (inside > 0), "started": epoch + (inside > 0)}
    for name in ("total", "current"):
        state["epoch_progress"][name] = {"processed": epoch, "completed": epoch, **begun}
    state["epoch_loop.state_dict"]["_batches_that_stepped"] = step
    loop.load_state_dict(state)


def _check(trainer: Trainer, module: LightningModule, loader: Any) -> None:
    if not isinstance(trainer, Trainer):
        raise TypeError(
            f"invalid value of type {type(trainer).__name__} for trainer: expected "
            "lightning.pytorch.Trainer"
        )
    sampler = loader.sampler if isinstance(loader, DataLoader) else None
    is_plain = isinstance(sampler, RandomSampler | SequentialSampler)
    if not is_plain or getattr(sampler, "replacement", False):
        raise TypeError(
            "invalid value for loader: expected a DataLoader(dataset, batch_size=…, shuffle=…) "
            "without a sampler of its own"
        )
    if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
        raise ValueError(
            f"invalid strategy {type(trainer.strategy).__name__}: it wraps the model and the "
            "optimizer itself: expected DDP or a single device; use its own checkpoints"
        )
    for name, value, expected in (
        ("batch_size", loader.batch_size or None, loader.batch_size or "a number"),
        ("automatic_optimization", module.automatic_optimization, True),
        ("accumulate_grad_batches", trainer.accumulate_grad_batches, 1),
        ("limit_train_batches", trainer.limit_train_batches, 1.0),
        ("overfit_batches", trainer.overfit_batches, 0),
    ):
        if value != expected:
            raise ValueError(
                f"invalid value {value!r} for {name}: expected {expected!r} with "
                "ft_run.training.lightning.fit"
            )
