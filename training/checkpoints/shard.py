"""A rank's part of a checkpoint that is written without a snapshot."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from ..ranks import Ranks
from .collective import on_all_ranks, on_rank_0
from .containers import Item, write_values
from .metadata import Offsets, metadata_of, offsets_of

_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""


class ShardError(Exception):
    """Raised when the ranks cannot agree on their parts; the message is the reason."""


class Shard:
    """The values that this rank writes; of values that several ranks have, one rank writes them."""

    def __init__(self, ranks: Ranks, state: Mapping[str, Any]) -> None:
        """Divide the state among the ranks. All ranks call it together.

        Args:
            ranks: of the job.
            state: the nested state dict of this rank.

        Raises:
            ShardError: the states of the ranks do not match; raised on all of them.
        """
        self._ranks = ranks
        self._planner = DefaultSavePlanner()
        self._state = dict(state)
        self._plan = SavePlan([])
        self._plans: list[SavePlan] = []
        """Of all ranks; only on rank 0."""
        self._items: list[Item] = []
        self._device = _CUDA.current_device() if _CUDA.is_initialized() else None
        if self._device is not None:
            _CUDA.synchronize()  # copies of another thread do not wait for this one's streams
        words = on_all_ranks(ranks, self._make_plan)
        plans = ranks.gather(self._plan)
        words = words or on_rank_0(ranks, lambda: self._agree(plans))
        if words is not None:
            raise ShardError(words)
        self._plan = ranks.scatter(self._plans)

    def _make_plan(self) -> None:
        self._planner.set_up_planner(self._state, is_coordinator=self._ranks.rank == 0)
        self._plan = self._planner.create_local_plan()

    def _agree(self, plans: list[SavePlan]) -> None:
        self._plans, _ = self._planner.create_global_plan(plans)

    @property
    def is_empty(self) -> bool:
        """Whether this rank writes nothing."""
        return not self._plan.items

    def write(self, file: Any, written: Callable[[], object]) -> None:
        """Write this rank's file, from any thread.

        Args:
            file: with a method ``write``.
            written: called after each write.
        """
        if self._device is None:
            self._items = write_values(self._planner, self._plan, file, written)
            return
        with _CUDA.device(self._device):
            self._items = write_values(self._planner, self._plan, file, written)

    def offsets(self) -> list[Offsets]:
        """Return the offsets in all files on rank 0. All ranks call it together."""
        return self._ranks.gather(offsets_of(self._plan, self._items))

    def metadata(self, offsets: list[Offsets]) -> bytes:
        """Return the metadata of the checkpoint, on rank 0.

        Args:
            offsets: from ``offsets``.
        """
        return metadata_of(self._plans, offsets)
