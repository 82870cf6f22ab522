"""What a node claims of its last round: a new master without a round needs it. Values only."""

import enum
from typing import Annotated

from msgspec import Struct

from ... import defaults
from .bounds import NODES_MAX, Age, Ages, Ballot, Count, Length, Name, ShortText, Whole
from .carried import CarriedField
from .failure import Failure
from .steps import STEPS_MAX

FurthestStep = Annotated[int, Whole(-1, STEPS_MAX)]
"""-1: none."""


class ClaimState(enum.Enum):
    """The state of a node's workers in their round."""

    RUNNING = 1
    DONE = 2
    """All of them exited 0."""
    STOPPED = 3
    """None is alive; they were stopped or have failed."""


class NodeFailures(Struct, frozen=True):
    """How often a node was the root cause of a restart."""

    node_id: Name
    ages_s: Ages
    """When the round was formed, whole seconds, within ``--restart-window``; bounded."""


class Progress(Struct, frozen=True):
    """How many steps the workers of a node have done in a round."""

    furthest: FurthestStep = -1
    """The highest step that the script has reported; -1: it reports none."""
    has_stepped: bool = False
    """Whether a worker has done a step, or reported progress."""


class PastProgress(Struct, frozen=True):
    """How many steps the job has done in all rounds."""

    furthest: FurthestStep
    """As in ``Progress``."""
    idle_restarts: Count
    """The number of consecutive restarts without a step."""


class Past(Struct, frozen=True):
    """The state of the job before a round, as far as a later master needs it."""

    restart_ages_s: Ages = ()
    """Ages of the restarts within ``--restart-window`` when the round was formed, in seconds."""
    excluded: Annotated[tuple[ShortText, ...], Length(NODES_MAX)] = ()
    """Identities of excluded nodes."""
    since_s: Age = 0
    """How long ago the round was formed; each node fills this in when it attends."""
    failures: Annotated[tuple[NodeFailures, ...], Length(NODES_MAX)] = ()
    """The failures of the nodes that failed last; bounded."""
    progress: PastProgress | None = None
    """None: unknown."""
    carried: CarriedField = ()
    """The values with which the round was formed."""


class Claim(Struct, frozen=True):
    """The last round of a node: what a new master without a round needs."""

    round: Count
    formed_by: Name
    """The master that formed it: independent masters may use the same number."""
    restarts: Count
    nodes: Count
    """Size of that round's world, in nodes."""
    node_rank: Count
    rank_offset: Count
    """Rank of this node's local rank 0."""
    successor: Name
    """As in ``Assignment``: with it a new master can name a node that has not reconnected."""
    state: ClaimState
    failures: Annotated[tuple[Failure, ...], Length(defaults.FAILURES_IN_VERDICT)] = ()
    """Failures of this node's workers in that round."""
    past: Past | None = None
    checked: bool = False
    """The node has passed the checks of this job."""
    term: Ballot = 0
    """As in ``Assignment``."""
    ended: ShortText = ""
    """Why the round ended, if its leader has decided that and then resigned; ``restarts`` and
    ``past`` include that decision. Empty if unknown."""
    clear: Ballot = 0
    """Term of the last leader that resigned while no worker of the job was alive; 0 if none did."""
