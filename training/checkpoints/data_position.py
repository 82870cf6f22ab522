"""Warns if a training that resumes reads its data again from the start."""

from functools import wraps
from typing import Any

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import dataloader

from ..worker.log import log
from .rank_state import RESERVED
from .state import State

_WITHOUT_POSITION = (nn.Module, Optimizer, LRScheduler, GradScaler)
_iterators = 0
"""Number of iterators of torch's DataLoader that this process has made."""


def _count_iterators() -> None:
    """Count iterators from now on: nothing else tells whether a process uses a DataLoader."""
    kind: Any = dataloader._BaseDataLoaderIter
    create = kind.__init__

    @wraps(create)
    def counted(self: Any, *args: Any, **options: Any) -> None:
        global _iterators
        _iterators += 1
        create(self, *args, **options)

    kind.__init__ = counted


_count_iterators()


class DataPosition:
    """Whether the state has the position of the data."""

    def __init__(self, state: State, position: str | None) -> None:
        """Check the argument ``position``.

        Raises:
            ValueError: it is neither None nor ``step``.
        """
        if position not in (None, "step"):
            raise ValueError(f"invalid value {position!r} for position: expected 'step' or None")
        objects = [v for name, v in state.objects.items() if not name.startswith(RESERVED)]
        self._is_missing = position is None and all(
            isinstance(value, _WITHOUT_POSITION) for value in objects
        )
        self._resumed_at = 0

    def resumed(self, step: int, *, is_logging: bool) -> None:
        """Note the step from which training resumes.

        Args:
            step: completed steps.
            is_logging: whether this rank prints the warning.
        """
        self._resumed_at = step if is_logging and self._is_missing else 0

    def check(self) -> None:
        """Warn at the end of the first step if a DataLoader was used."""
        step, self._resumed_at = self._resumed_at, 0
        if step and _iterators:
            log(
                f"resumed at step {step}, but the state has no position in the data, so a "
                "DataLoader starts with its first batch again: see docs/guide/data.md; if the "
                'samples follow from the step, pass position="step" to Checkpointer'
            )
