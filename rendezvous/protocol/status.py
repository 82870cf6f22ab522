"""The response to ``ft-run status``."""

from typing import Annotated

from msgspec import Struct

from .bounds import (
    NODES_MAX,
    OF_A_NODE,
    Ballot,
    Count,
    CountOrNone,
    Length,
    LongText,
    Real,
    Seconds,
    Text,
    Whole,
)
from .steps import RATE_MAX, STEPS_MAX, RankSteps

_LINES_MAX = 1_000
_Amount = Annotated[int, Whole(0, 1 << 53)]


class NodeStatus(Struct, frozen=True):
    """One node, as the master sees it."""

    node_id: Text
    host: Text
    address: Text
    role: Text
    phase: Text
    """A value of ``NodePhase``."""
    node_rank: CountOrNone
    """-1 if it is in no world."""
    rank_offset: CountOrNone
    """-1 if it is in no world."""
    local_world_size: Count
    attached: bool
    """Whether it is connected."""
    workers: Annotated[tuple[RankSteps, ...], OF_A_NODE] = ()
    """Workers that have shown progress."""
    segment: Text = ""


class WorkProgress(Struct, frozen=True):
    """Progress of work that the job does in addition to its steps."""

    name: Text
    done: _Amount
    size: _Amount
    """Total amount of work."""
    per_s: Annotated[float, Real(RATE_MAX)]
    """Recent rate, in units per second; 0 if unknown."""
    left_s: Annotated[float, Real(RATE_MAX)]
    """Time left, in seconds; 0 if unknown."""
    what: Text = ""
    """The kind of work; empty if the master does not report it."""
    unit: Text = ""
    """The unit of ``done`` and ``size``, e.g. ``items``; empty if the master does not report it."""


class StatusReply(Struct, frozen=True):
    """A job, as its master sees it. All times in seconds."""

    job_id: Text = ""
    """Empty before the first node."""
    phase: Text = ""
    """A value of ``GroupPhase``."""
    round: CountOrNone = -1
    """-1 before the first."""
    restarts: Count = 0
    """Restarts that count against ``max_restarts``."""
    max_restarts: Count = 0
    min_nodes: Count = 0
    max_nodes: Count = 0
    world_nodes: Count = 0
    """Number of nodes in the world of the round."""
    uptime_s: Seconds = 0.0
    """Time since the master started."""
    round_uptime_s: Seconds = 0.0
    """Time since the round was formed."""
    nodes: Annotated[tuple[NodeStatus, ...], Length(NODES_MAX)] = ()
    version: Text = ""
    """Version of the master's ft-run."""
    last_stop: LongText = ""
    """Why the last round ended, or is being ended; empty if none has."""
    hosts: Annotated[tuple[Text, ...], Length(NODES_MAX)] = ()
    """All listed endpoints, if there are several."""
    leader: Text = ""
    """The leading endpoint; empty if unknown."""
    term: Ballot = 0
    """Term of its lease."""
    lease_s: Seconds = 0.0
    """How long this host leads by its lease; 0 if another host leads."""
    checkpoint_step: Annotated[int, Whole(0, STEPS_MAX)] = 0
    """Step of the ``Checkpointer``'s newest checkpoint; 0 if unknown."""
    checkpoint_age_s: Seconds = 0.0
    exit_code: Annotated[int, Whole(0, 255)] | None = None
    """Exit code of the job; None until it ends."""
    ended: LongText = ""
    """How it ended."""
    report: Annotated[str, Length(1 << 24)] = ""
    """JSON, from the events of the master's process; can be empty."""
    work: Annotated[tuple[WorkProgress, ...], Length(_LINES_MAX)] = ()
