"""Events of the master: the nodes, rounds and checks of its job, and the master itself.

A node is named by its identity. Sentences that other parts of the product make (a reason, a
refusal, a finding of the checks) are passed on as they are.
"""

from .event import Event, Severity


class MasterEvent(Event, frozen=True):
    """An event of the job at the master. A node that hosts the master shows it at DEBUG."""

    severity = Severity.DEBUG


# --- nodes -----------------------------------------------------------------------------------


class NodeJoined(MasterEvent, frozen=True):
    """A node joined the job."""

    node_id: str
    address: str
    host: str = ""
    workers: int = 0
    role: str = ""
    segment: str = ""

    name = "node.joined"
    line = "master: node {node_id} joined from {address}{where}"

    @property
    def where(self) -> str:
        """The segment, in parentheses; empty: it has none."""
        return f" (segment {self.segment})" if self.segment else ""


class NodeReconnected(MasterEvent, frozen=True):
    """A node reconnected."""

    node_id: str

    name = "node.reconnected"
    line = "master: node {node_id} reconnected"


class NodeDisconnected(MasterEvent, frozen=True):
    """A node disconnected; it is lost if it does not reconnect within ``node_grace``."""

    node_id: str

    name = "node.disconnected"
    line = "master: node {node_id} disconnected"


class NodeLeaves(MasterEvent, frozen=True):
    """A node is leaving the job."""

    node_id: str
    reason: str

    name = "node.leaving"
    line = "master: node {node_id} is leaving: {reason}"


class NodePreemptionNoticed(MasterEvent, frozen=True):
    """A node is being preempted; all ranks save a snapshot first, within ``limit_s``."""

    node_id: str
    reason: str
    limit_s: float

    name = "node.preempted"
    line = (
        "master: node {node_id} is being preempted ({reason}): saving a snapshot on all ranks (up "
        "to {limit_s:.0f} s)"
    )


class ScaleUpPrepared(MasterEvent, frozen=True):
    """The world is about to grow; all ranks save a snapshot first, within ``limit_s``."""

    reason: str
    limit_s: float

    name = "growth.prepared"
    line = "master: {reason}: saving a snapshot on all ranks first (up to {limit_s:.0f} s)"


class ScaleUpCancelled(MasterEvent, frozen=True):
    """The world does not grow: too few nodes are left for a larger one."""

    name = "growth.cancelled"
    line = "master: not scaling up: too few new nodes are left; training continues"


class NodeLost(MasterEvent, frozen=True):
    """A node is lost: it did not reconnect in time, or another process replaced it."""

    node_id: str
    reason: str

    name = "node.lost"
    line = "master: node {node_id} is lost: {reason}"


class NodeExcluded(MasterEvent, frozen=True):
    """The failure policy has excluded a node."""

    node_id: str

    name = "node.excluded"
    line = "master: node {node_id} is excluded"


class NodeFailedChecks(MasterEvent, frozen=True):
    """A node failed the checks."""

    node_id: str
    sentence: str

    name = "node.rejected"
    line = "master: node {node_id} rejected by the checks: {sentence}"


class NodeRefused(MasterEvent, frozen=True):
    """The master refused a node."""

    peer: str
    sentence: str
    """The reason, as the node receives it."""

    name = "node.refused"
    severity = Severity.WARNING

    def __str__(self) -> str:
        return f"master: {self.peer} refused: {self.sentence.removesuffix('.')}"


class NodeRenamed(MasterEvent, frozen=True):
    """A node received another ID, since another host with its name is connected."""

    node_id: str
    host: str

    name = "node.renamed"
    line = "master: duplicate host name {host}: the new node is {node_id}"


class OptionsReplaced(MasterEvent, frozen=True):
    """A node of the running job connected: its options apply, not those of the nodes here."""

    node_id: str

    name = "options.replaced"
    line = "master: node {node_id} was already running this job: using its options"


class NoNodeResponds(MasterEvent, frozen=True):
    """No node responds: the master may be cut off, and keeps the round for ``kept_s``."""

    kept_s: float

    name = "nodes.silent"
    line = "master: no node responds: keeping the round for {kept_s:g} s"


class NodesRespondAgain(MasterEvent, frozen=True):
    """Nodes respond again."""

    name = "nodes.responding"
    line = "master: nodes respond again"


# --- rounds and checks -----------------------------------------------------------------------


class RoundFormed(MasterEvent, frozen=True):
    """A round starts."""

    round: int
    nodes: int
    world_size: int
    restarts: int
    max_restarts: int
    reason: str

    name = "round.formed"
    line = (
        "master: round={round} started nodes={nodes} world_size={world_size} "
        "restarts={restarts}/{max_restarts} ({reason})"
    )


class TakeoverBegun(MasterEvent, frozen=True):
    """Nodes of a round of an earlier master have connected; the master waits for the others."""

    round: int

    name = "takeover.started"
    line = "master: round={round} was started by an earlier master: taking it over"


class RoundTakenOver(MasterEvent, frozen=True):
    """The master has taken over a round; ``nodes`` of its ``of_nodes`` are connected."""

    round: int
    nodes: int
    of_nodes: int
    restarts: int
    finding: str

    name = "round.taken_over"
    line = (
        "master: round={round} taken over nodes={nodes}/{of_nodes} restarts={restarts} ({finding})"
    )


class WorkAdvanced(MasterEvent, frozen=True):
    """The progress of a name of ``shared_work``: about once a minute, and at its end."""

    work: str
    done: int
    size: int
    per_s: float
    left_s: float

    name = "work.advanced"
    line = "master: shared work {work!r}: {done} of {size} items done, {per_s:.1f} per second"


class PieceFails(MasterEvent, frozen=True):
    """A piece of ``shared_work`` has failed so many workers."""

    piece: str
    workers: int

    name = "work.piece_failed"
    severity = Severity.WARNING
    line = "master: {workers} workers have failed while doing {piece}"


class JobFinished(MasterEvent, frozen=True):
    """The job has finished."""

    sentence: str

    name = "job.finished"
    line = "master: job finished: {sentence}"


class JobForgotten(MasterEvent, frozen=True):
    """All nodes left before the first round."""

    name = "job.forgotten"
    line = "master: all nodes left before the first round"


class ChecksBegun(MasterEvent, frozen=True):
    """``nodes`` of ``of_nodes`` are checked: the others have passed before."""

    nodes: int
    of_nodes: int

    name = "checks.started"
    line = "master: checking {nodes} of {of_nodes} nodes"


class ChecksAborted(MasterEvent, frozen=True):
    """The checks end without a result."""

    name = "checks.aborted"
    line = "master: checks aborted"


class ChecksConcluded(MasterEvent, frozen=True):
    """The result of the checks of all nodes."""

    sentence: str

    name = "checks.concluded"
    line = "master: checks: {sentence}"


# --- the master itself -----------------------------------------------------------------------


class MasterListening(Event, frozen=True):
    """A master without an agent is listening."""

    endpoint: str
    port: int

    name = "master.listening"
    line = "master: listening at {endpoint} (port {port})"


class UnauthenticatedClientsAccepted(Event, frozen=True):
    """The master accepts unauthenticated clients from other hosts."""

    endpoint: str

    name = "master.unauthenticated"
    line = (
        "master: {endpoint} accepts unauthenticated clients: the job has no token (ft-run token, "
        "--token-file)"
    )


class MasterMoved(Event, frozen=True):
    """The endpoint's port is free: this agent hosts the master from now on."""

    address: str

    name = "master.moved"
    line = "the port of the endpoint is free: master hosted here now, {address}"


class MasterKept(Event, frozen=True):
    """This node has stopped its workers, but still hosts the master."""

    is_excluded: bool

    name = "master.kept"

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.ERROR if self.is_excluded else Severity.INFO

    def __str__(self) -> str:
        if self.is_excluded:
            return "this node is excluded; it still hosts the master"
        return "hosting the master until the other nodes have restarted without this one"


class MasterSignalled(Event, frozen=True):
    """A signal stops a master without an agent."""

    signal: str
    has_nodes: bool

    name = "master.signalled"
    severity = Severity.WARNING

    def __str__(self) -> str:
        left = "no nodes are connected"
        if self.has_nodes:
            left = "the workers keep running and their agents wait for a new master"
        return f"master: received {self.signal}, exiting; {left}"


class HostLeads(Event, frozen=True):
    """With several master hosts: this host is the leader from now on, or no longer (term 0)."""

    term: int

    name = "leader.changed"

    def __str__(self) -> str:
        leads = f"is the leader, term {self.term}" if self.term else "is no longer the leader"
        return f"master: this host {leads}"


class EndpointsAreOne(Event, frozen=True):
    """Several of the ``of`` endpoints are this one process."""

    endpoints: tuple[str, ...]
    of: int

    name = "endpoints.same_host"
    severity = Severity.WARNING

    def __str__(self) -> str:
        many = len(self.endpoints) > self.of // 2
        needed = ", and the job does not survive its loss" if many else ""
        named = ", ".join(self.endpoints)
        return f"master: {named} are all this process and count as one host{needed}"


class EndedElsewhere(Event, frozen=True):
    """With several master hosts: the leader has reported that the job has finished."""

    exit_code: int

    name = "job.ended_elsewhere"
    line = "master: job finished, exit code {exit_code}"
