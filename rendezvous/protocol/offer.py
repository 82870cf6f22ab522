"""Every node's offer for the next round: an address for the store, and its snapshots."""

from typing import Annotated

from msgspec import Struct

from .bounds import Count, Length, Name, Port, Ranks, Whole
from .carried import CarriedField

STEP_MAX = (1 << 63) - 1
Step = Annotated[int, Whole(0, STEP_MAX)]
Owner = Annotated[int, Whole(0, STEP_MAX)]
"""Digest of the directory of checkpoints and the names of the state; 0 if unknown, from a node or
master of an older version."""
_HELD = Length(8)
"""Per node: the newest snapshot, the previous one, and those of replicas."""


class Snapshot(Struct, frozen=True):
    """State of one step in the memory of a node: each of its workers has saved its shard."""

    step: Step
    """Number of completed steps."""
    world_size: Count
    """World size of the ranks that have saved it."""
    rank_offset: Count
    """Rank of the first shard."""
    is_replicated: bool
    """Whether each shard is the state of all ranks."""
    owner: Owner = 0
    generation: Step = 0
    """Increases with each snapshot of the job, regardless of its owner; 0 if unknown."""


class Replica(Struct, frozen=True):
    """Shards of other nodes' ranks in the state of one step."""

    step: Step
    world_size: Count
    ranks: Ranks
    owner: Owner = 0
    generation: Step = 0
    """As in ``Snapshot``."""


class Snapshots(Struct, frozen=True):
    """All snapshots that a node has. Those of different rounds do not belong together."""

    round: Count
    """Round that saved them, or resumed from them."""
    formed_by: Name
    """ID of the master that formed it, as in ``Assignment``."""
    held: Annotated[tuple[Snapshot, ...], _HELD]
    replicas: Annotated[tuple[Replica, ...], _HELD] = ()
    """Replicas of several steps; empty if ``--snapshot-replicas`` is 0."""


class Resumption(Struct, frozen=True):
    """Snapshots from which all ranks of a round resume."""

    step: Step
    round: Count
    """As in ``Snapshots``: snapshots of another round are the state of another step."""
    formed_by: Name
    owner: Owner = 0


class Saving(Struct, frozen=True):
    """Part of a snapshot that a node saves to storage when its job fails."""

    step: Step
    ranks: Ranks
    """Ranks of the shards; they can be replicas of another node's."""
    owner: Owner = 0


class Offer(Struct, frozen=True):
    """Address at which this node would host the next round's store, if it got rank 0."""

    address: Name
    port: Port
    snapshots: Snapshots | None = None
    """None if its workers have saved none."""
    is_loading: bool = False
    """Whether the fork server of ``--preload`` is still importing its modules: a running round is
    not stopped for this node before ``Loaded``."""
    carried: CarriedField = ()
    """All values that this node knows."""
