"""Warns if a training that resumes reads its data again from the start."""

import gc

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, dataloader

from ..worker.log import log
from .rank_state import RESERVED
from .state import State

_LOADERS = (DataLoader, dataloader._BaseDataLoaderIter)
"""A loop over a loader that it makes itself holds only its iterator."""
_WITHOUT_POSITION = (nn.Module, Optimizer, LRScheduler, GradScaler)


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
        """Warn at the end of the first step if there is a DataLoader."""
        step, self._resumed_at = self._resumed_at, 0
        if step and any(issubclass(type(one), _LOADERS) for one in gc.get_objects()):
            log(
                f"resumed at step {step}, but the state has no position in the data, so a "
                "DataLoader starts with its first batch again: see docs/guide/data.md; if the "
                'samples follow from the step, pass position="step" to Checkpointer'
            )
