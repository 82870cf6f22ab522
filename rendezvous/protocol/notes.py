"""What a master notes of its job, as values; ``launcher.reporting.event_lines`` has the words.

Nodes are named by their identity. What other parts of the product say in a sentence (a reason, a
refusal, a finding of the checks) is passed on as it is.
"""

from ...values import dataclass

# --- nodes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node attends for the first time."""

    node_id: str
    address: str


@dataclass(frozen=True, slots=True)
class NodeReconnected:
    """A node whose stream had broken attends again."""

    node_id: str


@dataclass(frozen=True, slots=True)
class NodeDisconnected:
    """The stream of a node has broken; its grace begins."""

    node_id: str


@dataclass(frozen=True, slots=True)
class NodeLeaves:
    """A node was asked to leave the job."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeGivesNotice:
    """A node will be gone soon; all ranks leave one state first, in so many seconds at most."""

    node_id: str
    reason: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The grace of a node is over, or another process has its identity."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeExcluded:
    """The failure policy has excluded a node."""

    node_id: str


@dataclass(frozen=True, slots=True)
class NodeFailedChecks:
    """A node is sent away by the checks."""

    node_id: str
    sentence: str


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """A node is turned away at the door; ``node`` names it for people."""

    node: str
    sentence: str
    """For the master's console."""
    reason: str
    """What the node is told: the same for all that are refused for one reason."""


@dataclass(frozen=True, slots=True)
class NodeRenamed:
    """A node was given an identity, since another host of its name is there."""

    node_id: str
    host: str


@dataclass(frozen=True, slots=True)
class OptionsReplaced:
    """A node of the running job has come: its options hold, not those of the nodes here."""

    node_id: str


# --- rounds ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoundFormed:
    """A round begins."""

    round: int
    nodes: int
    world_size: int
    restarts: int
    max_restarts: int
    reason: str


@dataclass(frozen=True, slots=True)
class TakeoverBegun:
    """Nodes of a round of an earlier master are here; the others are awaited."""

    round: int


@dataclass(frozen=True, slots=True)
class RoundTakenOver:
    """The round of an earlier master is this one's now; ``nodes`` of its ``of_nodes`` are here."""

    round: int
    nodes: int
    of_nodes: int
    restarts: int
    finding: str


@dataclass(frozen=True, slots=True)
class VerdictGiven:
    """The job is over."""

    sentence: str


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """No node is left of a job that has not begun."""


# --- silence and checks ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllSilent:
    """Nothing is heard of any node: the round is kept for a time."""

    kept_s: float


@dataclass(frozen=True, slots=True)
class NodesHeardAgain:
    """The silence of all nodes is over."""


@dataclass(frozen=True, slots=True)
class ChecksBegun:
    """Nodes are checked, ``nodes`` of ``of_nodes``: the others are known to be good."""

    nodes: int
    of_nodes: int


@dataclass(frozen=True, slots=True)
class ChecksGivenUp:
    """The checks end without a finding."""


@dataclass(frozen=True, slots=True)
class ChecksConcluded:
    """What the checks found in all."""

    sentence: str


MasterNote = (
    NodeJoined
    | NodeReconnected
    | NodeDisconnected
    | NodeLeaves
    | NodeGivesNotice
    | NodeLost
    | NodeExcluded
    | NodeFailedChecks
    | NodeRefused
    | NodeRenamed
    | OptionsReplaced
    | RoundFormed
    | TakeoverBegun
    | RoundTakenOver
    | VerdictGiven
    | JobForgotten
    | AllSilent
    | NodesHeardAgain
    | ChecksBegun
    | ChecksGivenUp
    | ChecksConcluded
)
