"""Events of the master: what it notes of the nodes, rounds and checks of its job, and of itself.

A node is named by its identity. Sentences that other parts of the product make (a reason, a
refusal, a finding of the checks) are passed on as they are.
"""

from .event import Event, Severity


class MasterEvent(Event):
    """What a master notes of its job. A node that hosts the master shows it as a detail."""

    severity = Severity.DEBUG


# --- nodes -----------------------------------------------------------------------------------


class NodeJoined(MasterEvent):
    """A node attends for the first time."""

    node_id: str
    address: str

    line = "master: node {node_id} joined from {address}"


class NodeReconnected(MasterEvent):
    """A node whose stream had broken attends again."""

    node_id: str

    line = "master: node {node_id} reconnected"


class NodeDisconnected(MasterEvent):
    """The stream of a node has broken; its grace begins."""

    node_id: str

    line = "master: node {node_id} disconnected"


class NodeLeaves(MasterEvent):
    """A node was asked to leave the job."""

    node_id: str
    reason: str

    line = "master: node {node_id} is leaving: {reason}"


class NodePreemptionNoticed(MasterEvent):
    """A node is being preempted; all ranks leave one state first, within ``limit_s``."""

    node_id: str
    reason: str
    limit_s: float

    line = (
        "master: node {node_id} is being preempted ({reason}): saving a snapshot on all ranks (up "
        "to {limit_s:.0f} s)"
    )


class NodeLost(MasterEvent):
    """The grace of a node is over, or another process has its identity."""

    node_id: str
    reason: str

    line = "master: node {node_id} is lost: {reason}"


class NodeExcluded(MasterEvent):
    """The failure policy has excluded a node."""

    node_id: str

    line = "master: node {node_id} is excluded"


class NodeFailedChecks(MasterEvent):
    """The checks send a node away."""

    node_id: str
    sentence: str

    line = "master: node {node_id} rejected by the checks: {sentence}"


class NodeRefused(MasterEvent):
    """The master refuses a node; ``node`` names it for people."""

    node: str
    sentence: str
    """For the master's console."""
    reason: str
    """What the node is told: the same for all that are refused for one reason."""

    severity = Severity.WARNING

    def __str__(self) -> str:
        return f"master: {self.node} refused: {self.sentence.removesuffix('.')}"


class NodeRenamed(MasterEvent):
    """A node was given an identity, since another host of its name is there."""

    node_id: str
    host: str

    line = "master: duplicate host name {host}: the new node is {node_id}"


class OptionsReplaced(MasterEvent):
    """A node of the running job has come: its options hold, not those of the nodes here."""

    node_id: str

    line = "master: node {node_id} was already running this job: using its options"


class NoNodeResponds(MasterEvent):
    """Nothing is heard of any node: the round is kept for a time."""

    kept_s: float

    line = "master: no node responds: keeping the round for {kept_s:g} s"


class NodesRespondAgain(MasterEvent):
    """The silence of all nodes is over."""

    line = "master: nodes respond again"


# --- rounds and checks -----------------------------------------------------------------------


class RoundFormed(MasterEvent):
    """A round begins."""

    round: int
    nodes: int
    world_size: int
    restarts: int
    max_restarts: int
    reason: str

    line = (
        "master: round={round} started nodes={nodes} world_size={world_size} "
        "restarts={restarts}/{max_restarts} ({reason})"
    )


class TakeoverBegun(MasterEvent):
    """Nodes of a round of an earlier master are here; the others are awaited."""

    round: int

    line = "master: round={round} was started by an earlier master: taking it over"


class RoundTakenOver(MasterEvent):
    """The round of an earlier master is this one's now; ``nodes`` of its ``of_nodes`` are here."""

    round: int
    nodes: int
    of_nodes: int
    restarts: int
    finding: str

    line = (
        "master: round={round} taken over nodes={nodes}/{of_nodes} restarts={restarts} ({finding})"
    )


class JobFinished(MasterEvent):
    """The job is over."""

    sentence: str

    line = "master: job finished: {sentence}"


class JobForgotten(MasterEvent):
    """No node is left of a job that has not begun."""

    line = "master: all nodes left before the first round"


class ChecksBegun(MasterEvent):
    """``nodes`` of ``of_nodes`` are checked: the others are known to be good."""

    nodes: int
    of_nodes: int

    line = "master: checking {nodes} of {of_nodes} nodes"


class ChecksAborted(MasterEvent):
    """The checks end without a finding."""

    line = "master: checks aborted"


class ChecksConcluded(MasterEvent):
    """What the checks found in all."""

    sentence: str

    line = "master: checks: {sentence}"


# --- the master itself -----------------------------------------------------------------------


class MasterListening(Event):
    """A master without an agent is there."""

    endpoint: str
    port: int

    line = "master: listening at {endpoint} (port {port})"


class UnauthenticatedClientsAccepted(Event):
    """A master listens beyond this host, and there is no token."""

    endpoint: str

    line = (
        "master: {endpoint} accepts unauthenticated clients: the job has no token (ft-run token, "
        "--token-file)"
    )


class MasterMoved(Event):
    """The endpoint's port has become free: this agent hosts the master from now on."""

    address: str

    line = "the port of the endpoint is free: master hosted here now, {address}"


class MasterNotHosted(Event):
    """This agent cannot host the master."""

    reason: str

    severity = Severity.DEBUG
    line = "cannot host the master: {reason}"


class MasterKept(Event):
    """This node, excluded or asked to leave, ends but for the master that it hosts."""

    is_excluded: bool

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.ERROR if self.is_excluded else Severity.INFO

    def __str__(self) -> str:
        if self.is_excluded:
            return "this node is excluded; it still hosts the master"
        return "hosting the master until the other nodes have restarted without this one"


class MasterSignalled(Event):
    """A signal ends a master without an agent."""

    signal: str
    has_nodes: bool

    severity = Severity.WARNING

    def __str__(self) -> str:
        left = "no nodes are connected"
        if self.has_nodes:
            left = "the workers keep running and their agents wait for a new master"
        return f"master: received {self.signal}, exiting; {left}"


class HostLeads(Event):
    """With several endpoints: this host leads from now on, or no longer (term 0)."""

    term: int

    def __str__(self) -> str:
        leads = f"is the leader, term {self.term}" if self.term else "is no longer the leader"
        return f"master: this host {leads}"


class EndpointsAreOne(Event):
    """Several of the listed endpoints, of so many in all, are this one process."""

    endpoints: tuple[str, ...]
    of: int

    severity = Severity.WARNING

    def __str__(self) -> str:
        many = len(self.endpoints) > self.of // 2
        needed = ", and the job does not survive its loss" if many else ""
        named = ", ".join(self.endpoints)
        return f"master: {named} are all this process and count as one host{needed}"


class EndedElsewhere(Event):
    """With several endpoints: the host that led has told this master that the job is over."""

    exit_code: int

    line = "master: job finished, exit status {exit_code}"
