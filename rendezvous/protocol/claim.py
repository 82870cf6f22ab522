"""A node's claims about its last round, for a new master without a round."""

import enum
from typing import Annotated

from msgspec import Struct

from ... import defaults
from .bounds import NODES_MAX, Age, Ages, Ballot, Count, Length, Name, ShortText, Whole
from .carried import CarriedField
from .failure import Failure
from .steps import STEPS_MAX

FurthestStep = Annotated[int, Whole(-1, STEPS_MAX)]
"""-1 if none."""


class ClaimState(enum.Enum):
    """The state of a node's workers in their round."""

    RUNNING = 1
    DONE = 2
    """All of them exited with 0."""
    STOPPED = 3
    """None is alive; they were stopped or have failed."""


class NodeFailures(Struct, frozen=True):
    """How often a node was the root cause of a restart."""

    node_id: Name
    ages_s: Ages
    """Ages when the round was formed, in whole seconds, within ``--restart-window``; bounded."""


class Progress(Struct, frozen=True):
    """Number of steps that the workers of a node have done in a round."""

    furthest: FurthestStep = -1
    """Highest step that the script has reported; -1 if it reports none."""
    has_stepped: bool = False
    """Whether a worker has done a step, or reported progress."""


class PastProgress(Struct, frozen=True):
    """Number of steps that the job has done in all rounds."""

    furthest: FurthestStep
    """As in ``Progress``."""
    idle_restarts: Count
    """Number of consecutive restarts without a step."""


class Past(Struct, frozen=True):
    """State of the job before a round that a later master needs."""

    restart_ages_s: Ages = ()
    """Ages of the restarts within ``--restart-window`` when the round was formed, in seconds."""
    excluded: Annotated[tuple[ShortText, ...], Length(NODES_MAX)] = ()
    """Identities of excluded nodes."""
    since_s: Age = 0
    """How long ago the round was formed; each node fills this in when it joins."""
    failures: Annotated[tuple[NodeFailures, ...], Length(NODES_MAX)] = ()
    """Failures of the nodes that failed last; bounded."""
    progress: PastProgress | None = None
    """None if unknown."""
    carried: CarriedField = ()
    """Values with which the round was formed."""


class Claim(Struct, frozen=True):
    """The last round of a node."""

    round: Count
    formed_by: Name
    """ID of the master that formed it, because independent masters can use the same number."""
    restarts: Count
    nodes: Count
    """Size of that round's world, in nodes."""
    node_rank: Count
    rank_offset: Count
    """Rank of this node's local rank 0."""
    successor: Name
    """As in ``Assignment``: allows a new master to name a node that has not reconnected."""
    state: ClaimState
    failures: Annotated[tuple[Failure, ...], Length(defaults.FAILURES_IN_VERDICT)] = ()
    """Failures of this node's workers in that round."""
    past: Past | None = None
    checked: bool = False
    """Whether the node has passed the checks of this job."""
    term: Ballot = 0
    """As in ``Assignment``."""
    ended: ShortText = ""
    """Why the round ended, if its leader has decided that and then resigned; ``restarts`` and
    ``past`` include that decision. Empty if unknown."""
    clear: Ballot = 0
    """Term of the last leader that resigned while no worker of the job was alive; 0 if none did."""
