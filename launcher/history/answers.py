"""Answers to questions of the person on call about a job. Times are Unix times in seconds.

``events.record.json_value`` converts them to JSON.
"""

from msgspec import Struct, field

from .accounting import Phase
from .advice import Advice, Measured


class Training(Struct, frozen=True):
    """Is it training, and is it slower than it was?"""

    phase: str = Phase.STARTING.value
    """A value of ``accounting.Phase``, for the known node with the lowest rank."""
    is_training: bool = False
    """Whether steps are being completed, as far as reported; False for unwatched workers."""
    step: int = -1
    """The last step, as the script counts; -1 if unknown."""
    step_at_s: float | None = None
    """Time of the last known step."""
    steps_per_s: float | None = None
    """Rate in the last minute; None if unknown."""
    best_hour_steps_per_s: float | None = None
    """Median of the best hour with this number of workers; None in the first minutes."""
    slowdown: float | None = None
    """Duration of a step relative to the best hour: 1.3 is 30% longer."""
    data_wait: float | None = None
    """Share of the last minute in which workers waited for data; None if unknown."""


class Checkpoint(Struct, frozen=True):
    """The last complete checkpoint in storage."""

    step: int
    at_s: float
    seconds: float
    bytes: int
    path: str


class Saves(Struct, frozen=True):
    """How much would be lost now?"""

    checkpoint: Checkpoint | None = None
    snapshot_step: int = -1
    """Step of the newest snapshot in memory of the node with the lowest rank; -1 if none."""
    snapshot_at_s: float | None = None
    """Time of its first report, up to a minute after it was saved."""
    replica_lag: int | None = None
    """Steps from the newest replica to the newest snapshot; None without replicas."""
    failed: int = 0
    """Number of failed checkpoints since the last one that was written."""
    failed_in_all: int = 0
    reason: str = ""
    """Reason of the last failure."""


class FailureNote(Struct, frozen=True):
    """One failure."""

    round: int
    """The round in which it occurred, or that started because of it."""
    at_s: float
    """Time of the report."""
    kind: str
    """The kind, as in ``Failure`` in a record."""
    rank: int
    """-1 if it does not concern a single rank."""
    node_rank: int
    host: str
    summary: str
    """One line: rank, node and reason."""
    lines: tuple[str, ...]
    """The last lines of standard error, of the exception or of the stacks; limited."""


class Restart(Struct, frozen=True):
    """One restart of the workers."""

    round: int
    """The round that it started."""
    at_s: float
    cause: FailureNote
    rule: str
    """The decision of the failure policy; empty for the default rule."""
    is_free: bool
    """Whether it is not counted."""


class Restarts(Struct, frozen=True):
    """How many restarts, and why?"""

    count: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    """Number by kind of the cause."""
    used: int = 0
    """Number that counts against the limit."""
    limit: int | None = None
    """``--max-restarts``; None if there was no restart."""
    last: tuple[Restart, ...] = ()
    """The newest last; limited."""
    failures: tuple[FailureNote, ...] = ()
    """Failures since the start of the last round: they ended the job, or a restart follows."""


class Nodes(Struct, frozen=True):
    """Which nodes are missing, and how many spares are left?"""

    min_nodes: int | None = None
    max_nodes: int | None = None
    in_round: int = 0
    """Nodes of the current or last round."""
    connected: tuple[str, ...] | None = None
    """None without events of the master."""
    spares: int | None = None
    missing: tuple[str, ...] = ()
    """Ranks or hosts that the next round waits for, as in ``agent.waiting``."""
    lost: tuple[str, ...] = ()
    """Lost nodes that have not reconnected."""
    excluded: tuple[str, ...] = ()
    """Nodes excluded by the failure policy or the checks."""
    xids: tuple[str, ...] = ()
    """Errors from GPU drivers: node, GPU and number; limited."""


class JobSummary(Struct, frozen=True):
    """The answers as of the last event."""

    job: str = ""
    attempt: int = 0
    runs: int = 0
    """Number of starts of the job in the events."""
    started_at_s: float | None = None
    at_s: float | None = None
    """Time of the last event."""
    exit_code: int | None = None
    """None if the job has not ended."""
    ended: str = ""
    training: Training = field(default_factory=Training)
    saves: Saves = field(default_factory=Saves)
    restarts: Restarts = field(default_factory=Restarts)
    nodes: Nodes = field(default_factory=Nodes)
    measured: Measured | None = None
    """Measurements of the node with the lowest rank, with ``--auto-tune advise``; None at first."""
    advice: tuple[Advice, ...] = ()
