"""The known nodes, their phases and their streams.

Sets by phase make every rule O(1) per message, so that a round costs O(N).
"""

import enum
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from msgspec import Struct

from ..protocol.bounds import NODES_MAX
from ..protocol.claim import Claim
from ..protocol.failure import Failure
from ..protocol.messages import Assignment, NodeSpec
from ..protocol.offer import Offer

Sizes = Counter[str]
"""Number of nodes per segment."""


class NodePhase(enum.Enum):
    """Phase of a node. ``_LEGAL`` contains all legal transitions."""

    READY = "ready"
    """Has no workers and could enter a world."""
    RUNNING = "running"
    """Was ordered to start the workers of its round."""
    DONE = "done"
    """All of its workers exited with 0."""
    STOPPING = "stopping"
    """Was ordered to stop the workers of the current round and has not yet confirmed it."""
    STALE = "stale"
    """Joined with workers of an outdated round; was ordered to stop them, not yet confirmed."""


_LEGAL = {
    NodePhase.READY: {NodePhase.RUNNING, NodePhase.STALE},
    NodePhase.RUNNING: {NodePhase.DONE, NodePhase.STOPPING},
    NodePhase.DONE: {NodePhase.STOPPING},
    NodePhase.STOPPING: {NodePhase.READY},
    NodePhase.STALE: {NodePhase.READY},
}


class Node(Struct):
    """One node, as its master sees it. Change ``phase`` and ``link`` through the roster only."""

    spec: NodeSpec
    offer: Offer
    arrival: int
    phase: NodePhase
    link: int | None
    """Its stream; None while it is detached."""
    detached_at: float = 0.0
    """When it lost its last stream."""
    round: int = -1
    """Round whose workers it has, had or is stopping; -1 before its first."""
    last_round: int = -1
    """Highest round, of any master, in which it reports to have been; the next one gets a higher
    number."""
    rank: int | None = None
    """Node rank in its last world."""
    rank_offset: int = -1
    assignment: Assignment | None = None
    """The last assignment sent, kept for resending."""
    leaving: str = ""
    """Why it asked to leave; empty if it did not."""
    passed: bool = False
    """It has passed the checks of this job, and nothing has cast doubt on that."""
    has_met: bool = False
    """It has passed together with another node, not only alone."""
    answered: int = 0
    """Number of the last check order that it has carried out, in time or not."""

    def has_rank(self, rank: int) -> bool:
        """Return whether the node had a worker of this rank in its last world."""
        return self.rank is not None and 0 <= rank - self.rank_offset < self.spec.local_world_size

    def own(self, failure: Failure, claim: Claim | None = None) -> Failure:
        """Return a failure as this node can report it, in the world of its claim if there is one.

        A stream can only report for its own node: it can neither blame nor exclude another node.
        """
        place = (self.rank, self.rank_offset)
        if claim is not None:
            place = (claim.node_rank, claim.rank_offset)
        node_rank, first_rank = -1 if place[0] is None else place[0], place[1]
        workers = self.spec.local_world_size
        return failure.reported_by(node_rank, first_rank, workers)


def sizes_of(nodes: Iterable[Node]) -> Sizes:
    """Return the number of nodes per segment."""
    return Counter(node.spec.segment for node in nodes)


class Incarnations(OrderedDict[str, str]):
    """Agent processes, and the identities that they received.

    Only the newest are kept: a client that reconnects under many names uses no more memory than the
    largest job.
    """

    def add(self, incarnation: str, given: str = "") -> None:
        """Add a process as the newest; drop the oldest if there are too many."""
        self.pop(incarnation, None)
        self[incarnation] = given
        if len(self) > NODES_MAX:
            self.popitem(last=False)


class Roster:
    """All known nodes by identity, stream and phase."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._by_link: dict[int, Node] = {}
        self._by_wanted_rank: dict[int, Node] = {}
        self._by_phase: dict[NodePhase, dict[str, Node]] = {phase: {} for phase in NodePhase}
        self._detached: Counter[NodePhase] = Counter()
        """Number of nodes without a stream, by phase; needed at every event."""
        self.ready_sizes: Sizes = Counter()
        """Number of nodes per segment that could enter a world now."""
        self.loading: set[str] = set()
        """Identities of the nodes that are still importing the modules of ``--preload``."""
        # In order of detachment. The grace period is constant, so this is also the order of loss.
        self._lost_at: dict[str, float] = {}
        # The same for nodes whose deadline ``await_return`` has extended.
        self._back_by: dict[str, float] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def add(self, spec: NodeSpec, offer: Offer, link: int, phase: NodePhase) -> Node:
        """Add an unknown node."""
        assert spec.node_id not in self._nodes
        node = Node(spec, offer, self._arrivals, phase, link)
        self._arrivals += 1
        self._nodes[spec.node_id] = node
        self._by_link[link] = node
        self._by_phase[phase][spec.node_id] = node
        self._count(node, 1)
        self.set_offer(node, offer)
        if spec.wanted_rank is not None:
            self._by_wanted_rank[spec.wanted_rank] = node
        return node

    def set_offer(self, node: Node, offer: Offer) -> None:
        """Record the newest offer of a node."""
        node.offer = offer
        if offer.is_loading:
            self.loading.add(node.spec.node_id)
        else:
            self.loading.discard(node.spec.node_id)

    def remove(self, node: Node) -> None:
        """Forget a node."""
        del self._nodes[node.spec.node_id]
        self.loading.discard(node.spec.node_id)
        del self._by_phase[node.phase][node.spec.node_id]
        self._count(node, -1)
        self._forget_loss(node)
        if node.link is not None:
            del self._by_link[node.link]
        else:
            self._detached[node.phase] -= 1
        wanted = node.spec.wanted_rank
        if wanted is not None and self._by_wanted_rank.get(wanted) is node:
            del self._by_wanted_rank[wanted]

    def move(self, node: Node, phase: NodePhase) -> None:
        """Change a node's phase; an illegal transition is a bug and fails an assertion."""
        assert phase in _LEGAL[node.phase], f"{node.phase} -> {phase}"
        del self._by_phase[node.phase][node.spec.node_id]
        if node.link is None:
            self._detached[node.phase] -= 1
            self._detached[phase] += 1
        self._count(node, -1)
        node.phase = phase
        self._count(node, 1)
        self._by_phase[phase][node.spec.node_id] = node

    def attach(self, node: Node, link: int) -> None:
        """Set a node's stream."""
        if node.link is not None:
            del self._by_link[node.link]
        else:
            self._detached[node.phase] -= 1
        self._count(node, -1)
        node.link = link
        self._count(node, 1)
        self._by_link[link] = node
        self._forget_loss(node)

    def detach(self, node: Node, lost_at: float) -> None:
        """Remove a node's stream; the node is lost at ``lost_at`` unless it reconnects."""
        assert node.link is not None
        del self._by_link[node.link]
        self._count(node, -1)
        node.link = None
        self._count(node, 1)
        self._detached[node.phase] += 1
        self._lost_at[node.spec.node_id] = lost_at

    def await_return(self, until: float) -> None:
        """Extend the deadline of each detached node, once per detachment.

        Otherwise a node that never reconnects would not be lost if others reconnect repeatedly.
        """
        late = {name: max(at, until) for name, at in self._lost_at.items()}
        self._back_by.update(late)
        self._lost_at.clear()

    def _count(self, node: Node, by: int) -> None:
        if node.phase is NodePhase.READY and node.link is not None:
            self.ready_sizes[node.spec.segment] += by
            if not self.ready_sizes[node.spec.segment]:
                del self.ready_sizes[node.spec.segment]

    def _forget_loss(self, node: Node) -> None:
        self._lost_at.pop(node.spec.node_id, None)
        self._back_by.pop(node.spec.node_id, None)

    def get(self, node_id: str) -> Node | None:
        """Return the node with that identity."""
        return self._nodes.get(node_id)

    def by_link(self, link: int) -> Node | None:
        """Return the node that currently has this stream."""
        return self._by_link.get(link)

    def by_wanted_rank(self, rank: int | None) -> Node | None:
        """Return the node that was started with ``--node-rank`` ``rank``."""
        return None if rank is None else self._by_wanted_rank.get(rank)

    def anyone_wants_a_rank(self) -> bool:
        """Return whether any node was started with ``--node-rank``."""
        return bool(self._by_wanted_rank)

    def in_phase(self, *phases: NodePhase) -> list[Node]:
        """Return the nodes in any of these phases."""
        return [node for phase in phases for node in self._by_phase[phase].values()]

    def count(self, phase: NodePhase) -> int:
        """Return the number of nodes in a phase."""
        return len(self._by_phase[phase])

    def ready_nodes(self) -> list[Node]:
        """Return the nodes that could enter a world now."""
        return [node for node in self._by_phase[NodePhase.READY].values() if node.link is not None]

    def ready_attached(self) -> int:
        """Return how many nodes could enter a world now."""
        return self.count(NodePhase.READY) - self._detached[NodePhase.READY]

    @property
    def detached(self) -> int:
        """Number of nodes without a stream."""
        return self._detached.total()

    def next_loss(self) -> float | None:
        """Return when the first detached node is lost."""
        first = (next(iter(times.values()), None) for times in (self._lost_at, self._back_by))
        return min((at for at in first if at is not None), default=None)

    def overdue(self, now: float) -> list[Node]:
        """Return the nodes whose grace period has expired."""
        times = [*self._lost_at.items(), *self._back_by.items()]
        return [self._nodes[name] for name, at in times if at <= now]
