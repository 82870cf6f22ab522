"""What every node offers for the next round: a place for the store, and the snapshots it holds."""

from typing import Annotated

from ...values import dataclass
from .bounded import Count, Length, Name, Port, Ranks, Whole

STEP_MAX = (1 << 63) - 1
Step = Annotated[int, Whole(0, STEP_MAX)]
_HELD = Length(8)
"""Of one node: the newest, the one before, and those that replicas belong to."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of one step in the memory of a node: each of its workers has left its share."""

    step: Step
    """How many steps were done."""
    world_size: Count
    """Of the ranks whose state it is."""
    rank_offset: Count
    """The rank of the first share."""
    is_replicated: bool
    """Any share is the state of all ranks."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Shares of other nodes' ranks in the state of one step."""

    step: Step
    world_size: Count
    ranks: Ranks


@dataclass(frozen=True, slots=True)
class Snapshots:
    """All that a node holds. Those of different rounds do not belong together."""

    round: Count
    """The round that took them, or began with them."""
    formed_by: Name
    """The master that formed it, as in ``Assignment``."""
    held: Annotated[tuple[Snapshot, ...], _HELD]
    replicas: Annotated[tuple[Replica, ...], _HELD] = ()
    """Of several steps; none where ``--snapshot-replicas`` is 0."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Which snapshots all ranks of a round resume from."""

    step: int
    round: int
    """As in ``Snapshots``: what is left of another round is the state of another step."""
    formed_by: str


@dataclass(frozen=True, slots=True)
class Saving:
    """What a node writes to storage when its job ends without success: its part of a snapshot."""

    step: int
    ranks: tuple[int, ...]
    """Whose shares; they may be replicas of another node's."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Where this node would host the store of the next round, if it got rank 0."""

    address: Name
    port: Port
    snapshots: Snapshots | None = None
    """None: its workers have left none."""
