"""The answer of ``ft-run status``. Values only."""

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
from .work_messages import NAMES_MAX, WorkSize


class NodeStatus(Struct, frozen=True):
    """One node, as the master sees it."""

    node_id: Text
    host: Text
    address: Text
    role: Text
    phase: Text
    """A value of ``NodePhase``."""
    node_rank: CountOrNone
    """-1: in no world."""
    rank_offset: CountOrNone
    """-1: in no world."""
    local_world_size: Count
    attached: bool
    """Whether it is connected."""
    workers: Annotated[tuple[RankSteps, ...], OF_A_NODE] = ()
    """Those that have shown progress."""
    segment: Text = ""


class WorkProgress(Struct, frozen=True):
    """Progress of one name of ``shared_work``."""

    name: Text
    done: WorkSize
    """Confirmed items."""
    size: WorkSize
    """All items."""
    per_s: Annotated[float, Real(RATE_MAX)]
    """Items per second; 0: not known."""
    left_s: Annotated[float, Real(RATE_MAX)]
    """Time left, in seconds; 0: not known."""


class StatusReply(Struct, frozen=True):
    """A job, as its master sees it. All times in seconds."""

    job_id: Text = ""
    """Empty before the first node."""
    phase: Text = ""
    """A value of ``GroupPhase``."""
    round: CountOrNone = -1
    """-1 before the first."""
    restarts: Count = 0
    """Those that count against ``max_restarts``."""
    max_restarts: Count = 0
    min_nodes: Count = 0
    max_nodes: Count = 0
    world_nodes: Count = 0
    """Nodes in the world of the round."""
    uptime_s: Seconds = 0.0
    """Since the master started."""
    round_uptime_s: Seconds = 0.0
    """Since the round was formed."""
    nodes: Annotated[tuple[NodeStatus, ...], Length(NODES_MAX)] = ()
    version: Text = ""
    """Of the master's ft-run."""
    last_stop: LongText = ""
    """Why the last round ended, or is being ended; empty: none did."""
    hosts: Annotated[tuple[Text, ...], Length(NODES_MAX)] = ()
    """With several endpoints: all that are listed."""
    leader: Text = ""
    """The one that leads; empty: none that is known."""
    term: Ballot = 0
    """Of its lease."""
    lease_s: Seconds = 0.0
    """How long this host leads by its lease; 0: another host leads."""
    checkpoint_step: Annotated[int, Whole(0, STEPS_MAX)] = 0
    """Of the newest checkpoint of the ``Checkpointer``; 0: none is known."""
    checkpoint_age_s: Seconds = 0.0
    exit_code: Annotated[int, Whole(0, 255)] | None = None
    """Of the job; None: it has not ended."""
    ended: LongText = ""
    """How it ended."""
    report: Annotated[str, Length(1 << 24)] = ""
    """JSON, from the events of the master's process; empty: none."""
    work: Annotated[tuple[WorkProgress, ...], Length(NAMES_MAX)] = ()
    """Of ``shared_work``."""
