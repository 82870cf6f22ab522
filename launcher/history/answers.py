"""The answers to what the person on call asks about a job. Times are Unix times in seconds.

``events.record.json_value`` makes JSON of them.
"""

from msgspec import Struct, field

from .accounting import Phase
from .advice import Advice
from .measured import Measured


class Training(Struct, frozen=True):
    """Is it training, and is it slower than it was?"""

    phase: str = Phase.STARTING.value
    """A value of ``accounting.Phase``: of the node with the lowest rank that is known."""
    is_training: bool = False
    """Whether steps are being done, as far as reported; False for workers that are not watched."""
    step: int = -1
    """The last step, as the script counts; -1: not known."""
    step_at_s: float | None = None
    """When the last known step was done."""
    steps_per_s: float | None = None
    """In the last minute; None: not known."""
    best_hour_steps_per_s: float | None = None
    """Median of the best hour with this number of workers; None: too few minutes so far."""
    slowdown: float | None = None
    """How much longer a step takes than in the best hour: 1.3 is 30 % longer."""
    data_wait: float | None = None
    """Share of the last minute in which the workers waited for data; None: not known."""


class Checkpoint(Struct, frozen=True):
    """The last checkpoint that is complete on the storage."""

    step: int
    at_s: float
    seconds: float
    bytes: int
    path: str


class Saves(Struct, frozen=True):
    """How much would be lost?"""

    checkpoint: Checkpoint | None = None
    snapshot_step: int = -1
    """Of the newest snapshot in the memory of the node with the lowest rank; -1: none."""
    snapshot_at_s: float | None = None
    """When it was first reported, which is up to a minute after it was saved."""
    replica_lag: int | None = None
    """Steps from the newest snapshot back to the newest replica; None: no replicas."""
    failed: int = 0
    """Checkpoints that were not written since the last one that was."""
    failed_in_all: int = 0
    reason: str = ""
    """Why the last one was not written."""


class FailureNote(Struct, frozen=True):
    """One failure."""

    round: int
    """The round in which it occurred, or which began because of it."""
    at_s: float
    """When it was reported."""
    kind: str
    """As ``Failure`` has it in a record."""
    rank: int
    """-1: of no single rank."""
    node_rank: int
    host: str
    summary: str
    """One line: rank, node and reason."""
    lines: tuple[str, ...]
    """The last lines of standard error, of the exception or of the stacks; bounded."""


class Restart(Struct, frozen=True):
    """One restart of the workers."""

    round: int
    """The round that it began."""
    at_s: float
    cause: FailureNote
    rule: str
    """The decision of the failure policy; empty: the default rule."""
    is_free: bool
    """It is not counted."""


class Restarts(Struct, frozen=True):
    """How many restarts, and why?"""

    count: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    """By kind of the cause."""
    used: int = 0
    """Those that count against the limit."""
    limit: int | None = None
    """``--max-restarts``; None: there was no restart."""
    last: tuple[Restart, ...] = ()
    """The newest last; bounded."""
    failures: tuple[FailureNote, ...] = ()
    """Since the last round has started: the job ended because of them, or a restart follows."""


class Nodes(Struct, frozen=True):
    """Which nodes are missing, and how many spares are left?"""

    min_nodes: int | None = None
    max_nodes: int | None = None
    in_round: int = 0
    """Nodes of the current round, or of the last one."""
    connected: tuple[str, ...] | None = None
    """None: the events of the master are not there."""
    spares: int | None = None
    missing: tuple[str, ...] = ()
    """Ranks or hosts that the next round waits for; as ``agent.waiting`` has them."""
    lost: tuple[str, ...] = ()
    """Lost, and not back."""
    excluded: tuple[str, ...] = ()
    """By the failure policy or the checks."""
    xids: tuple[str, ...] = ()
    """Errors that the drivers of GPUs have reported: node, GPU and number; bounded."""


class JobSummary(Struct, frozen=True):
    """The answers as of the last event."""

    job: str = ""
    attempt: int = 0
    runs: int = 0
    """How often the job was started, as far as the events show."""
    started_at_s: float | None = None
    at_s: float | None = None
    """The time of the last event."""
    exit_code: int | None = None
    """None: the job has not ended."""
    ended: str = ""
    """How it ended."""
    training: Training = field(default_factory=Training)
    saves: Saves = field(default_factory=Saves)
    restarts: Restarts = field(default_factory=Restarts)
    nodes: Nodes = field(default_factory=Nodes)
    measured: Measured | None = None
    """Of the node with the lowest rank, with ``--auto-tune advise``; None: nothing yet."""
    advice: tuple[Advice, ...] = ()
    """What follows from it."""
