"""The metadata of a checkpoint whose files are there already, as snapshots: made once per layout.

``torch.distributed.checkpoint`` pickles it. Only workers make it, and only what loads a checkpoint
reads it: for the rest of ft-run it is bytes.
"""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan

from .storage import file_of

Places = Mapping[MetadataIndex, tuple[int, int]]
"""Where the container of each item of a plan is in a file: its start and length, in bytes."""


def places_of(plan: SavePlan, items: Sequence[Any]) -> Places:
    """Return where the items of a plan are.

    Args:
        plan: of one rank.
        items: what stands where in its file, in the same order.
    """
    indexes = (write.index for write in plan.items)
    return {index: (item.start, item.length) for index, item in zip(indexes, items, strict=True)}


def plan_of(state: Mapping[str, Any]) -> tuple[SavePlan, list[str]]:
    """Return what a rank's file holds, and the names of these values in a flat state dict.

    Args:
        state: the nested state dict of this rank.
    """
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=True)
    plan = planner.create_local_plan()
    paths = (planner.mappings[write.index.fqn] for write in plan.items)
    return plan, [".".join(map(str, path)) for path in paths]


def metadata_of(plans: Sequence[SavePlan], places: Sequence[Places]) -> bytes:
    """Return the metadata of a checkpoint.

    Args:
        plans: what each rank's file holds, by rank.
        places: where it is there, likewise.
    """
    planner = DefaultSavePlanner()
    planner.set_up_planner({}, is_coordinator=True)
    _, metadata = planner.create_global_plan(list(plans))
    # Of what several ranks have, the first one's is read.
    metadata.storage_data = {
        index: filesystem._StorageInfo(file_of(rank), start, length)
        for rank, of_rank in reversed([*enumerate(places)])
        for index, (start, length) in of_rank.items()
    }
    metadata.version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    return pickle.dumps(metadata)
