"""Builds the metadata file of ``torch.distributed.checkpoint`` for files that exist already.

It is a pickle: only workers build it, and only loading a checkpoint reads it.
"""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan

from .storage import file_of

Offsets = Mapping[MetadataIndex, tuple[int, int]]
"""Offset and length in bytes of the archive of each item of a plan in its file."""


def offsets_of(plan: SavePlan, items: Sequence[Any]) -> Offsets:
    """Return the offsets of the items of a plan.

    Args:
        plan: of one rank.
        items: of its file, in the same order.
    """
    indexes = (write.index for write in plan.items)
    return {index: (item.start, item.length) for index, item in zip(indexes, items, strict=True)}


def plan_of(state: Mapping[str, Any]) -> tuple[SavePlan, list[str]]:
    """Return the plan of a rank, and the flat keys of its items.

    Args:
        state: the nested state dict of this rank.
    """
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=True)
    plan = planner.create_local_plan()
    paths = (planner.mappings[write.index.fqn] for write in plan.items)
    return plan, [".".join(map(str, path)) for path in paths]


def metadata_of(plans: Sequence[SavePlan], offsets: Sequence[Offsets]) -> bytes:
    """Return the metadata of a checkpoint.

    Args:
        plans: of all ranks, by rank.
        offsets: of their items, by rank.
    """
    planner = DefaultSavePlanner()
    planner.set_up_planner({}, is_coordinator=True)
    _, metadata = planner.create_global_plan(list(plans))
    # An item that several ranks have is read from the first one.
    metadata.storage_data = {
        index: filesystem._StorageInfo(file_of(rank), start, length)
        for rank, of_rank in reversed([*enumerate(offsets)])
        for index, (start, length) in of_rank.items()
    }
    metadata.version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    return pickle.dumps(metadata)
