"""The hooks of a watched worker, which write its progress to the page that the agent reads.

``start.py`` loads this module when the script needs it, even in interpreters without ft-run: it
imports only the ft-run modules next to it, and little that torch has not loaded.
"""

from __future__ import annotations

import atexit
import sys
import time
from types import ModuleType
from typing import Any
from weakref import ref

from .data_wait import DataWait
from .imported import bits_of
from .page_layout import (
    BEFORE_NS,
    BEFORE_STEPS,
    BEFORE_WAIT_NS,
    CPU_BEGAN_NS,
    CPU_NS,
    CPU_WALL_NS,
    FIRST,
    FURTHEST,
    IMPORTED,
    LAST_NS,
    LONGEST_NS,
    MARK_NS,
    MARK_STEPS,
    MARK_WAIT_NS,
    REPORTS_ITSELF,
    STEPS,
    TICKS,
    TOTAL,
    USES_DEVICE,
    WAIT_NS,
    WALL_BEGAN_NS,
)
from .patching import take_name, when_loaded
from .phases import GROUPS, Phases, time_joining
from .recorders import note_backends
from .start import Page
from .store_wait import RENDEZVOUS, await_before_connecting

STRETCH_NS = 10_000_000_000
"""Minimum length of the intervals from which steps per second are computed."""
_CPU_EVERY_NS = 1_000_000_000

_OPTIMIZERS = "torch.optim.optimizer"
_LOADERS = "torch.utils.data.dataloader"
_REPORTERS = (
    ("transformers.integrations.integration_utils", "KubeflowCallback"),
    ("kubeflow.trainer.backends.kubernetes.utils", "update_trainjob_status"),
)
"""Modules that send progress to Kubeflow if they have a name: transformers' ``Trainer`` since
version 5, and Kubeflow's SDK."""


class Hook:
    """The worker's side of the page."""

    def __init__(self, page: Page) -> None:
        self._is_own, self._page = page.is_own, page.words
        self._reports_steps = False
        self._stepped: dict[int, Any] = {}
        """Optimizers that have stepped since the current step started, by id."""
        self.phases, self.data_wait = Phases(page), DataWait(page)

    def progress(self, step: int) -> None:
        """Record progress, and the script's number of steps unless it is -1."""
        if not self._is_own():
            return
        if step >= 0:
            if not self._reports_steps:
                self._reports_steps = True
                self._page[MARK_NS] = 0  # optimizer steps were counted so far
                self._page[FIRST] = step + 1
            self._page[STEPS] = step
            if step >= self._page[FURTHEST]:
                self._page[FURTHEST] = step + 1
        self._tick()

    def expect(self, total: int) -> None:
        """Record the steps of the whole training."""
        if self._is_own():
            self._page[TOTAL] = total

    def piece(self) -> None:
        """Record a finished piece of work: a step, if the script has no other steps."""
        if not self._is_own():
            return
        if not self._reports_steps and not self._stepped:
            self._page[STEPS] += 1
        self._tick()

    def after_step(self, optimizer: object, *_: object) -> None:
        """Record that an optimizer has ended a step."""
        if not self._is_own():
            return
        if self._is_new_step(optimizer) and not self._reports_steps:
            self._page[STEPS] += 1
        self._tick()

    def batch(self) -> None:
        """Record a batch of a data loader: progress in evaluation and gradient accumulation.

        It is ignored before the first step, which may be compiled for minutes.
        """
        if self._page[TICKS] and self._is_own():
            self._tick()

    def _is_new_step(self, optimizer: object) -> bool:
        """Return whether an optimizer step counts as a step of the script.

        If several optimizers alternate, e.g. a wrapper and its inner optimizer, the one that steps
        most often counts. Optimizers that are created for each batch each count.
        """
        number, stepped = id(optimizer), self._stepped
        known = stepped.get(number)
        if known is None or known() is not optimizer:
            if stepped and all(one() is not None for one in stepped.values()):
                stepped[number] = ref(optimizer)
                return False
        elif len(stepped) == 1:
            return True
        self._stepped = {number: ref(optimizer)}
        return True

    def _tick(self) -> None:
        page = self._page
        now = time.monotonic_ns()
        last = page[LAST_NS]
        if not last:
            self.phases.stepped()
            page[IMPORTED] = bits_of(sys.modules)
            page[USES_DEVICE], page[REPORTS_ITSELF] = _uses_device(), _reports_itself()
            page[CPU_BEGAN_NS], page[WALL_BEGAN_NS] = time.process_time_ns(), now
            # Registered late so that it runs before atexit functions of libraries, which may block.
            atexit.register(self.phases.enter, "stopping")
        elif now - page[WALL_BEGAN_NS] - page[CPU_WALL_NS] >= _CPU_EVERY_NS:
            page[REPORTS_ITSELF] = _reports_itself()
            page[CPU_NS] = time.process_time_ns() - page[CPU_BEGAN_NS]
            page[CPU_WALL_NS] = now - page[WALL_BEGAN_NS]
        if last and now - last > page[LONGEST_NS]:
            page[LONGEST_NS] = now - last
        page[LAST_NS] = now
        page[TICKS] += 1
        mark = page[MARK_NS]
        if now - mark >= STRETCH_NS:
            is_first = not mark
            page[BEFORE_NS] = now if is_first else mark
            page[BEFORE_STEPS] = page[STEPS] if is_first else page[MARK_STEPS]
            page[BEFORE_WAIT_NS] = page[WAIT_NS] if is_first else page[MARK_WAIT_NS]
            page[MARK_NS], page[MARK_STEPS] = now, page[STEPS]
            page[MARK_WAIT_NS] = page[WAIT_NS]


# A compiled step breaks its graph here and calls this function unchanged (as torch.compiler.disable
# does, without its import).
Hook.after_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch reads it
Hook.after_step._torchdynamo_disable_msg = None  # type: ignore[attr-defined]  # likewise


def _count_steps(optimizers: Any, hook: Hook) -> None:
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register is not None:  # since torch 2.0
        register(hook.after_step)


def _notice_batches(loaders: Any, hook: Hook) -> None:
    iterators = getattr(loaders, "_BaseDataLoaderIter", None)
    fetch = getattr(iterators, "__next__", None)
    if iterators is None or fetch is None:
        return

    def next_batch(iterator: Any) -> Any:
        if hook.data_wait.begin():
            has_batch = False
            try:
                batch = fetch(iterator)
                has_batch = True
            finally:
                hook.data_wait.end(iterator, has_batch=has_batch)
        else:
            batch = fetch(iterator)
        hook.batch()
        return batch

    take_name(next_batch, fetch)
    iterators.__next__ = next_batch


def _watch_groups(c10d: Any, phases: Phases, page: Page) -> None:
    time_joining(c10d, phases)
    note_backends(c10d, page)


def _reports_itself() -> bool:
    return any(hasattr(sys.modules.get(module), name) for module, name in _REPORTERS)


def _uses_device() -> bool:
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, name, None) for name in ("cuda", "xpu", "npu", "hpu"))
    asked = (getattr(kind, "is_initialized", None) for kind in kinds)
    return any(is_initialized is not None and is_initialized() for is_initialized in asked)


def install(module: ModuleType, page: Page) -> None:
    """Install the hooks in this process; ``ft_run.training`` calls the functions in ``module``."""
    hook = Hook(page)
    module.__dict__.update(
        progress=hook.progress,
        expect=hook.expect,
        piece=hook.piece,
        enter=hook.phases.enter,
        leave=hook.phases.leave,
        page=page,
    )
    when_loaded(
        {
            _OPTIMIZERS: lambda optimizers: _count_steps(optimizers, hook),
            _LOADERS: lambda loaders: _notice_batches(loaders, hook),
            RENDEZVOUS: await_before_connecting,
            GROUPS: lambda c10d: _watch_groups(c10d, hook.phases, page),
        }
    )
