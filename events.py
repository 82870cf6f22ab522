"""All events of a job, as values; ``launcher.reporting`` turns them into lines on the console.

An event has fields and no text (``launcher.reporting.event_lines`` has it), except for text that
comes from a worker or a master. Times and durations are in seconds, ranks are global
unless they are called local, and ``round`` and ``node_rank`` are those of the round that an event
is of. Fields are added at the end, so that what reads them by name goes on.
"""

import enum

from .rendezvous.protocol.failure import Failure
from .rendezvous.protocol.messages import Verdict
from .rendezvous.protocol.notes import MasterNote
from .values import dataclass


class Severity(enum.Enum):
    """How much a remark matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence about the options, a file or a log, from where they are read."""

    sentence: str
    severity: Severity = Severity.INFO


# --- the node and its master -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """An agent begins; ``source`` says where the number of workers is from."""

    job_id: str
    node_id: str
    workers: int
    source: str
    master: str


@dataclass(frozen=True, slots=True)
class NodeRenamed:
    """Another host with this one's name was there first: the master gave another identity."""

    proposed: str
    given: str


@dataclass(frozen=True, slots=True)
class ForeignAddressAdvertised:
    """The address given by ``--local-addr`` is none of this host."""

    address: str


@dataclass(frozen=True, slots=True)
class MasterListening:
    """A master without an agent is there."""

    endpoint: str
    port: int


@dataclass(frozen=True, slots=True)
class WireOpen:
    """A master listens beyond this host, and there is no token."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class MasterNoted:
    """What a master notes; ``is_apart``: it is a master without an agent."""

    note: MasterNote
    is_apart: bool


@dataclass(frozen=True, slots=True)
class MasterSignalled:
    """A master without an agent ends by a signal."""

    signal: str
    has_nodes: bool


@dataclass(frozen=True, slots=True)
class MasterMoved:
    """The endpoint's port has become free: this agent hosts the master from now on."""

    address: str


@dataclass(frozen=True, slots=True)
class MasterNotHosted:
    """This agent cannot host the master, for the reason given."""

    reason: str


@dataclass(frozen=True, slots=True)
class MasterKept:
    """This agent ends, but for the master that it hosts; ``is_excluded`` or asked to leave."""

    is_excluded: bool


@dataclass(frozen=True, slots=True)
class MasterConnected:
    """The master is there; ``is_again``: it had been, before."""

    is_again: bool


class WorkersAlone(enum.Enum):
    """What the workers of a node do that has no connection to the master."""

    NONE = "none"
    RUN = "run"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class MasterUnreachable:
    """The connection to the master is gone, or cannot be made."""

    reason: str
    endpoint: str
    workers: WorkersAlone
    limit_s: float
    """Seconds until this node gives up."""
    is_again: bool
    """It had been connected."""
    hosts: tuple[str, ...] = ()
    """Where no listed host is found to lead: what each of them has answered."""


@dataclass(frozen=True, slots=True)
class MasterAwaitedToLeave:
    """A node leaves while the master is away, and waits at most this long to tell it."""

    limit_s: float


@dataclass(frozen=True, slots=True)
class NodeWaits:
    """A node waits for a round; the fields are those of the master's ``Waiting``."""

    joined: int
    min_nodes: int
    max_nodes: int
    missing: tuple[str, ...]
    timeout_s: float
    is_spare: bool
    backoff_s: float
    is_backoff_given: bool
    """The delay is that of ``--restart-backoff``."""
    has_successors: bool = False
    """Several hosts may lead: a new leader waits too."""


@dataclass(frozen=True, slots=True)
class NodeSignalled:
    """A signal asks a node to leave."""

    signal: str
    workers: int
    is_check: bool = False
    """The node runs ``ft-run check``, which has no job."""


@dataclass(frozen=True, slots=True)
class NodeGoneSoon:
    """This node will be gone; the ranks have so many seconds to leave the state of one step."""

    reason: str
    seconds: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class DrainOrdered:
    """Another node will be gone."""

    reason: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class NodeLeaves:
    """This node leaves now; ``step`` is that which all ranks have left, -1: none is known."""

    reason: str
    workers: int
    step: int


@dataclass(frozen=True, slots=True)
class NoticeUnknown:
    """Whether this node will be gone cannot be asked, for the reason given."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkersFenced:
    """No host has led for too long, so the workers of this node are killed."""

    limit_s: float


@dataclass(frozen=True, slots=True)
class FenceLate:
    """The workers of this node were killed later than a leader elsewhere has waited for."""

    late_s: float


@dataclass(frozen=True, slots=True)
class HostLeads:
    """With several endpoints: this host leads from now on, or no longer (term 0)."""

    term: int


@dataclass(frozen=True, slots=True)
class EndpointsAreOne:
    """Several of the listed endpoints, of so many in all, are this one process."""

    endpoints: tuple[str, ...]
    of: int


@dataclass(frozen=True, slots=True)
class JobOver:
    """With several endpoints: the host that led has told this master that the job is over."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class KilledOnRequest:
    """A second Ctrl-C: what is left is killed at once."""


# --- rounds and workers ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """The workers of a round run on this node; ``pids`` in order of local rank."""

    round: int
    node_rank: int
    first_rank: int
    pids: tuple[int, ...]
    world_size: int
    nodes: int
    store_addr: str
    store_port: int
    store_pid: int | None
    """The store process, if there is one on this node."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker of this node failed, or the store process."""

    round: int
    node_rank: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class WorkersStopped:
    """Workers are told to end; ``is_stale``: killed at once, the others went on without them."""

    round: int
    node_rank: int
    workers: int
    reason: str
    is_stale: bool


@dataclass(frozen=True, slots=True)
class WorkersKilled:
    """Workers, or what they left running, did not end in their time."""

    round: int
    node_rank: int
    workers: int
    timeout_s: float
    is_option: bool
    """That time is ``--shutdown-timeout``, not a shorter one."""
    leftovers: int
    """Processes that workers left running, where all workers have ended."""


@dataclass(frozen=True, slots=True)
class HangDismissed:
    """Workers show no progress, but are not taken to hang; the sentence is the master's."""

    round: int
    node_rank: int
    sentence: str


@dataclass(frozen=True, slots=True)
class StacksKept:
    """Where all ranks were when the workers hung has been written to a file."""

    round: int
    node_rank: int
    path: str


@dataclass(frozen=True, slots=True)
class CollectivesRecorded:
    """NCCL's flight recorder has written down the last collectives of workers that hang."""

    round: int
    node_rank: int
    written: tuple[int, ...]
    """Ranks that have."""
    late: tuple[int, ...]
    """Ranks that have not within their time."""
    files: str
    """What the names of the files begin with; the rank follows."""


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """A process did not take its timer back in time (``torch.distributed.elastic.timer``)."""

    round: int
    node_rank: int
    pid: int
    scope: str


@dataclass(frozen=True, slots=True)
class WorkersSucceeded:
    """All workers of this node exited with 0."""

    round: int
    node_rank: int
    workers: int
    nodes: int


@dataclass(frozen=True, slots=True)
class LeftoversEnded:
    """Processes that workers left running are ended."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RestartBegun:
    """A round begins after a failure; the same on every node."""

    round: int
    node_rank: int
    cause: Failure
    decision: str
    """Of the failure policy, in words; empty where the default rule decided."""
    is_free: bool
    """The restart is not counted."""
    restarts_used: int
    max_restarts: int


@dataclass(frozen=True, slots=True)
class RegroupBegun:
    """A round begins after a change of members."""

    round: int
    node_rank: int
    nodes: int
    reason: str


class PreloadState(enum.Enum):
    """The state of the preload."""

    LOADING = "loading"
    READY = "ready"
    STALE = "stale"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PreloadChanged:
    """The modules of ``--preload`` are being imported, or are, or cannot be."""

    state: PreloadState
    modules: tuple[str, ...]
    text: str
    """How long it took, which file has changed, or why it failed."""
    is_of_checks: bool = False
    """It is for the check workers."""
    is_repeated: bool = False
    """The same is told of the workers that train."""


@dataclass(frozen=True, slots=True)
class PreloadAwaited:
    """Workers of a round begin when modules have been imported."""

    round: int
    node_rank: int


# --- output ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogFileEnded:
    """A worker's log file cannot be written any more; the worker runs on."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RelayLost:
    """The relay of the workers' output was killed."""

    pid: int
    streams: int
    """How many were open; their workers get a broken pipe."""


@dataclass(frozen=True, slots=True)
class RelayReplaced:
    """Another relay carries the output of the workers that are started from now on."""

    pid: int


@dataclass(frozen=True, slots=True)
class RelayFull:
    """The relay has no file descriptor for a stream."""


@dataclass(frozen=True, slots=True)
class OutputUnshown:
    """Nothing read the console: this much of the workers' output is not shown."""

    bytes: int


# --- checks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChecksProgressed:
    """Progress of the checks; ``is_alone``: those of ``ft-run check`` on one node."""

    progress: str
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class NodeJudged:
    """A result of the checks for one node that is worth a line."""

    node: str
    standing: str
    reasons: str


@dataclass(frozen=True, slots=True)
class NodePassedWithRemark:
    """The checks let this node in, but found something."""

    sentence: str


@dataclass(frozen=True, slots=True)
class ChecksEnded:
    """The result of all checks."""

    conclusion: str


# --- checkpoints -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A checkpoint is complete."""

    step: int
    path: str
    bytes: int
    seconds: float
    is_last: bool
    """It was written because the job ends, or this node leaves."""


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint that a worker asked for was not written."""

    step: int
    reason: str
    newest: int = -1
    """The step of the newest one that this node has made visible; -1: none."""


@dataclass(frozen=True, slots=True)
class BreakpointUnsaved:
    """The newest snapshot was not written before the job ended, or this node left."""

    step: int
    reason: str


# --- the end ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogsKept:
    """Where this node's log files are."""

    path: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """How the job ended, the same on every node."""

    verdict: Verdict


Event = (
    Remark
    | NodeStarted
    | NodeRenamed
    | ForeignAddressAdvertised
    | MasterListening
    | WireOpen
    | MasterNoted
    | MasterSignalled
    | MasterMoved
    | MasterNotHosted
    | MasterKept
    | MasterConnected
    | MasterUnreachable
    | MasterAwaitedToLeave
    | NodeWaits
    | NodeSignalled
    | NodeGoneSoon
    | DrainOrdered
    | NodeLeaves
    | NoticeUnknown
    | KilledOnRequest
    | WorkersFenced
    | FenceLate
    | HostLeads
    | EndpointsAreOne
    | JobOver
    | WorkersStarted
    | WorkerFailed
    | WorkersStopped
    | WorkersKilled
    | HangDismissed
    | StacksKept
    | CollectivesRecorded
    | TimerExpired
    | WorkersSucceeded
    | LeftoversEnded
    | RestartBegun
    | RegroupBegun
    | PreloadChanged
    | PreloadAwaited
    | LogFileEnded
    | RelayLost
    | RelayReplaced
    | RelayFull
    | OutputUnshown
    | ChecksProgressed
    | NodeJudged
    | NodePassedWithRemark
    | ChecksEnded
    | CheckpointWritten
    | CheckpointFailed
    | BreakpointUnsaved
    | LogsKept
    | JobEnded
)
