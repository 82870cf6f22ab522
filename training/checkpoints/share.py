"""What a rank writes of a checkpoint of which there is no snapshot."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from ..ranks import Ranks
from .containers import Item, write_values
from .metadata import Places, metadata_of, places_of
from .together import on_first, together

_CUDA: Any = torch.cuda
"""Without types: torch's builds differ in them."""


class ShareError(Exception):
    """Raised when ranks cannot agree on what each writes; the text says why."""


class Share:
    """What this rank writes, as all ranks have agreed: what several have, one of them writes."""

    def __init__(self, ranks: Ranks, state: Mapping[str, Any]) -> None:
        """Agree, as all ranks do.

        Args:
            ranks: of the job.
            state: the nested state dict of this rank.

        Raises:
            ShareError: what the ranks have does not belong together; on all of them.
        """
        self._ranks = ranks
        self._planner = DefaultSavePlanner()
        self._state = dict(state)
        self._plan = SavePlan([])
        self._plans: list[SavePlan] = []
        """Of all ranks; only the first one has them."""
        self._items: list[Item] = []
        self._device = _CUDA.current_device() if _CUDA.is_initialized() else None
        if self._device is not None:
            _CUDA.synchronize()  # another thread's copies do not wait for this one's streams
        words = together(ranks, self._make_plan)
        plans = ranks.gather(self._plan)
        words = words or on_first(ranks, lambda: self._agree(plans))
        if words is not None:
            raise ShareError(words)
        self._plan = ranks.scatter(self._plans)

    def _make_plan(self) -> None:
        self._planner.set_up_planner(self._state, is_coordinator=self._ranks.rank == 0)
        self._plan = self._planner.create_local_plan()

    def _agree(self, plans: list[SavePlan]) -> None:
        self._plans, _ = self._planner.create_global_plan(plans)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing for this rank to write."""
        return not self._plan.items

    def write(self, file: Any, written: Callable[[], object]) -> None:
        """Write this rank's file, from any thread.

        Args:
            file: takes bytes by ``write``.
            written: is called whenever it has taken some.
        """
        if self._device is None:
            self._items = write_values(self._planner, self._plan, file, written)
            return
        with _CUDA.device(self._device):
            self._items = write_values(self._planner, self._plan, file, written)

    def places(self) -> list[Places]:
        """Return, on the first rank, what stands where in all files; all ranks call it together."""
        return self._ranks.gather(places_of(self._plan, self._items))

    def metadata(self, places: list[Places]) -> bytes:
        """Return the metadata of the checkpoint, on the first rank.

        Args:
            places: from ``places``.
        """
        return metadata_of(self._plans, places)
