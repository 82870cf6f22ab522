"""The messages between nodes and the master, as plain values.

``protos/rendezvous.proto`` has the same names and fields, and ``transport.codec`` converts. They
are separate from protobuf so that the rules do no I/O and a standalone job never loads it.
"""

import enum
from typing import Annotated

from msgspec import Struct

from ... import defaults
from .bounds import (
    Ballot,
    Called,
    Count,
    CountOrNone,
    Length,
    LongText,
    Name,
    Port,
    Reason,
    Rules,
    Seconds,
    SecondsOrNever,
    ShortText,
    Text,
    Unchecked,
    Whole,
    Workers,
)
from .carried import Carried
from .check_messages import CheckOrder, CheckResult, CheckSpec, CheckVerdict
from .claim import Claim, Past, Progress
from .drain_messages import CancelDrain, Drain, Drained, MayLeave, Notice
from .failure import Failure
from .lease_messages import SuccessionSpec
from .offer import Offer, Resumption, Saving
from .stacks import NoHang, StackOrder, StackReport, Suspicion
from .steps import StepsOrder, StepsReport

PROTOCOL_VERSION = 1
"""Incremented with each incompatible change of the protocol."""
_MISSING_MAX = 1_000


class RoomMessage(Struct, frozen=True):
    """Base of the messages of other rooms, which group and agent pass on."""


class PolicySpec(Struct, frozen=True):
    """The response to failures (docs/reference/failure-policy.md). Times in seconds."""

    rules: Annotated[Rules, Called("the list of --on-failure rules")] = ()
    """The user's rules, ``MATCH=ACTION``, in their order."""
    restart_window_s: Seconds = 0.0
    """How far back restarts and failures of nodes count; 0 for all of them."""
    backoff_first_s: Annotated[
        Seconds, Called("the first delay of --restart-backoff in seconds")
    ] = 0.0
    backoff_max_s: Annotated[
        Seconds, Called("the longest delay of --restart-backoff in seconds")
    ] = 0.0
    """Maximum delay of a restart; if it is 0, only restarts that are not counted are delayed."""
    max_node_failures: Count = defaults.MAX_NODE_FAILURES
    """A node that was the root cause this often is excluded; 0 for never."""
    rank0_decides: Annotated[bool, Called("--success-policy rank0")] = False
    """Whether the job succeeds when rank 0 does."""
    max_no_progress: Annotated[Count, Called("--max-no-progress (of workers that are watched)")] = 0
    """Number of consecutive restarts without a step that ends the job; 0 for never."""


class HangSpec(Struct, frozen=True):
    """When workers are suspected to hang (docs/internals/hang-detection.md). Times in seconds."""

    timeout_s: Annotated[Seconds, Called("--hang-timeout in seconds (0 is auto)")]
    """Time without a step; 0 to derive it from the longest step so far."""
    start_s: Annotated[Seconds, Called("--hang-timeout-start in seconds")]
    """Time until the first step, and for calls that are known to take long."""


class JobSpec(Struct, frozen=True):
    """Options that must be the same on every node of a job."""

    job_id: Text
    min_nodes: Annotated[Count, Called("the minimum of --nnodes")]
    max_nodes: Annotated[Count, Called("the maximum of --nnodes")]
    node_unit: Count
    max_restarts: Count
    policy: PolicySpec | None = None
    """None for all defaults, which then need no bytes in a message."""
    checks: CheckSpec | None = None
    """None if nodes are not checked."""
    separate_store: Annotated[bool, Called("--store separate")] = False
    """The same on all nodes, because any of them may get rank 0."""
    rescale_delay_s: SecondsOrNever | None = None
    """``--rescale-delay``, infinity for never; None for the master's setting."""
    hang: HangSpec | None = None
    """None if workers are not watched for hangs."""
    succession: SuccessionSpec | None = None
    """Compared with that of the leader. None for a single endpoint."""


class NodeSpec(Struct, frozen=True):
    """Properties of a node that stay the same while its agent lives."""

    node_id: Name
    """Host name and a number, proposed by the node; a restarted agent proposes the same one. The
    master assigns another number if a live node has this one (``Renamed``)."""
    incarnation: Name
    """Random, one per agent process."""
    host: Name
    address: Name
    """IP address at which other nodes reach it."""
    role: Text
    local_world_size: Workers
    wanted_rank: Count | None
    """``--node-rank``; None if not given."""
    segment: Name = ""
    """NVLink domain, rack or block of the node; empty if unknown."""


# --- node → master ---------------------------------------------------------------------------


class Attend(Struct, frozen=True):
    """First message of every stream."""

    protocol: Unchecked
    version: Name
    job: JobSpec
    node: NodeSpec
    offer: Offer
    claim: Claim | None
    leaving: ShortText = ""
    """Why the node is leaving, as in ``Leave``; empty if it is not."""
    claims: Count = 0
    """Number of messages of other rooms that follow directly, with the node's state there."""


class Failed(Struct, frozen=True):
    """A worker of this node failed; the node is stopping its other workers."""

    round: Count
    failure: Failure


class Done(Struct, frozen=True):
    """All workers of this node exited with 0."""

    round: Count


class Stopped(Struct, frozen=True):
    """No worker of ``round`` is alive on this node; it is ready for the next one."""

    round: Count
    offer: Offer
    progress: Progress | None = None
    """None if unknown, e.g. if workers are not watched."""


class Loaded(Struct, frozen=True):
    """Offer of a ready node whose fork server has imported its modules, or has failed."""

    offer: Offer


class Leave(Struct, frozen=True):
    """The node was asked to leave (SIGTERM); it stops its workers, then closes the stream."""

    reason: Reason


class ChallengeReply(Struct, frozen=True):
    """The reply to ``Challenge``: this process is alive."""


class Heard(Struct, frozen=True):
    """The node has received the verdict."""


NodeMessage = (
    Attend
    | Failed
    | Done
    | Stopped
    | Leave
    | ChallengeReply
    | Heard
    | CheckResult
    | StackReport
    | Suspicion
    | StepsReport
    | Notice
    | Drained
    | RoomMessage
    | Loaded
)


# --- master → node ---------------------------------------------------------------------------


class Waiting(Struct, frozen=True):
    """A world is not complete yet."""

    joined: Count
    min_nodes: Count
    max_nodes: Count
    missing: Annotated[tuple[Name, ...], Length(_MISSING_MAX)]
    """Missing nodes, if known: ranks or hosts; bounded."""
    timeout_s: SecondsOrNever
    """Seconds until the master gives up; 0 if a round is running without this node."""
    spare: bool
    """Whether a round is running, and this node is a spare."""
    backoff_s: SecondsOrNever = 0.0
    """Seconds until the next round can be formed (``--restart-backoff``)."""


class Assignment(Struct, frozen=True):
    """A node's part of a world, and why the previous round ended."""

    round: Count
    formed_by: Name
    """Random ID of the master process that formed it."""
    restarts: Count
    """Restarts counted so far; the same number on every node."""
    node_rank: Count
    nodes: Count
    rank_offset: Count
    """Rank of this node's local rank 0."""
    world_size: Count
    role_rank_offset: Count
    role_world_size: Count
    successor: Name
    """Identity of the node with the next node rank; for the last node, that of the first."""
    master_addr: Name
    master_port: Port
    reason: LongText
    """Why this round was formed, as text."""
    cause: Failure | None
    """Root cause of a restart; None for the first round and for a regroup."""
    decision: LongText = ""
    """Decision of the failure policy, as text; empty for the default rule."""
    is_free: bool = False
    """Whether the restart was not counted."""
    restarts_in_window: Count = 0
    """The part of ``restarts`` that currently counts; only with ``--restart-window``."""
    past: Past | None = None
    resumption: Resumption | None = None
    """None if no snapshots are used."""
    term: Ballot = 0
    """Term of the leader that formed it; 0 with a single endpoint. Term and number identify a
    round: each of two leaders may have formed a round that the other does not know."""

    @property
    def carried(self) -> Carried:
        """Values of the job that outlive a round."""
        return self.past.carried if self.past is not None else ()


class Start(Struct, frozen=True):
    """Start the workers of a round."""

    assignment: Assignment


class Stop(Struct, frozen=True):
    """Stop the workers of a round, then reply with ``Stopped``."""

    round: Count
    reason: LongText
    lets_settle: bool = False
    """The known failure may be a consequence of another one: workers that are exiting can
    finish."""
    is_stale: bool = False
    """The other nodes continued without this one: its workers are killed immediately, because their
    SIGTERM handler (writing a checkpoint) could overwrite the results of the newer round."""
    is_hung: bool = False
    """The workers hang: they get SIGKILL soon after SIGTERM, because they will not save
    anything."""
    stacks: LongText = ""
    """Stacks of all ranks in a hang, for display; bounded."""


class Resigned(Struct, frozen=True):
    """The leader resigns: the state after the last round, for the claims of its nodes."""

    round: CountOrNone
    formed_by: Name
    """As in ``Claim``: identifies the round together with its number."""
    reason: LongText
    """Why the round ended."""
    restarts: Count
    """Restarts counted so far, including the one at the end of the round."""
    past: Past | None
    clear: Ballot
    """As in ``Claim``."""


class Challenge(Struct, frozen=True):
    """The node must reply that it is alive.

    The reasons: another process claims its identity, the other nodes do not respond, or this is the
    first message of one of several hosts that can lead.
    """


class Outcome(enum.Enum):
    """How a job ended."""

    SUCCEEDED = 1
    WORKERS_FAILED = 2
    RENDEZVOUS_FAILED = 3
    POLICY_ENDED = 4
    """The failure policy has ended the job: a retry would not help."""
    CHECKS_FAILED = 5
    """Too few nodes have passed the checks."""


class Verdict(Struct, frozen=True):
    """The end of the job, the same on every node except for the fields that state otherwise."""

    outcome: Outcome
    exit_code: Annotated[int, Whole(0, 255)]
    sentence: LongText
    restarts: Count
    rounds: Count
    cause: Failure | None
    failures: Annotated[tuple[Failure, ...], Length(defaults.FAILURES_IN_VERDICT)]
    """Failures of the last round, including the root cause; bounded."""
    failure_count: Count
    """Number of failures, including those that did not fit."""
    saving: Saving | None = None
    """Differs between nodes. None if this node does not save sharded state."""


class Refused(Struct, frozen=True):
    """This node cannot join; the stream ends."""

    sentence: LongText
    is_displaced: bool = False
    """Another process has replaced it: its workers belong to a stale round."""


class Excluded(Struct, frozen=True):
    """This node is excluded and cannot rejoin the job; the stream ends."""

    sentence: LongText


class Renamed(Struct, frozen=True):
    """Another node has the identity that this node proposed; it must use this one."""

    node_id: Annotated[str, Length(512, is_name=True, is_needed=True)]


MasterMessage = (
    Waiting
    | Start
    | Stop
    | Challenge
    | Verdict
    | Refused
    | Excluded
    | CheckOrder
    | CheckVerdict
    | Renamed
    | StackOrder
    | NoHang
    | StepsOrder
    | Drain
    | MayLeave
    | CancelDrain
    | RoomMessage
    | Resigned
)
