"""The answer of ``ft-run status``. Values only."""

from ...values import dataclass
from .steps import RankSteps


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node, as the master sees it."""

    node_id: str
    host: str
    address: str
    role: str
    phase: str
    """A value of ``NodePhase``."""
    node_rank: int
    """-1: in no world."""
    rank_offset: int
    """-1: in no world."""
    local_world_size: int
    attached: bool
    """Whether it is connected."""
    workers: tuple[RankSteps, ...] = ()
    """Those that have shown progress."""
    segment: str = ""


@dataclass(frozen=True, slots=True)
class WorkProgress:
    """Progress of one name of ``shared_work``."""

    name: str
    done: int
    """Confirmed items."""
    size: int
    """All items."""
    per_s: float
    """Items per second; 0: not known."""
    left_s: float
    """Time left, in seconds; 0: not known."""


@dataclass(frozen=True, slots=True)
class StatusReply:
    """A job, as its master sees it. All times in seconds."""

    job_id: str = ""
    """Empty before the first node."""
    phase: str = ""
    """A value of ``GroupPhase``."""
    round: int = -1
    """-1 before the first."""
    restarts: int = 0
    """Those that count against ``max_restarts``."""
    max_restarts: int = 0
    min_nodes: int = 0
    max_nodes: int = 0
    world_nodes: int = 0
    """Nodes in the world of the round."""
    uptime_s: float = 0.0
    """Since the master started."""
    round_uptime_s: float = 0.0
    """Since the round was formed."""
    nodes: tuple[NodeStatus, ...] = ()
    version: str = ""
    """Of the master's ft-run."""
    last_stop: str = ""
    """Why the last round ended, or is being ended; empty: none did."""
    hosts: tuple[str, ...] = ()
    """With several endpoints: all that are listed."""
    leader: str = ""
    """The one that leads; empty: none that is known."""
    term: int = 0
    """Of its lease."""
    lease_s: float = 0.0
    """How long this host leads by its lease; 0: another host leads."""
    checkpoint_step: int = 0
    """Of the newest checkpoint of the ``Checkpointer``; 0: none is known."""
    checkpoint_age_s: float = 0.0
    exit_code: int | None = None
    """Of the job; None: it has not ended."""
    ended: str = ""
    """How it ended."""
    report: str = ""
    """JSON, from the events of the master's process; empty: none."""
    work: tuple[WorkProgress, ...] = ()
    """Of ``shared_work``."""
