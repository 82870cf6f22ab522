"""State of a job, shared by all parts of the group."""

import math
from collections import Counter

from ..policy.decision import Aftermath
from ..protocol.lease_messages import NO_ROUND
from ..protocol.messages import JobSpec, PolicySpec
from .events import GroupSettings
from .phases import Gathering, Phase
from .roster import Incarnations, Node, Roster, Sizes
from .world import usable_size

_DEFAULT_POLICY = PolicySpec()


class JobState:
    """State of a job."""

    def __init__(self, settings: GroupSettings, master_id: str) -> None:
        """``master_id`` is random, one per master; it distinguishes worlds of equal number."""
        self.settings = settings
        self.master_id = master_id
        self.now = 0.0
        """Time of the event that is being handled."""
        self.job: JobSpec | None = None
        """Options on which all nodes must agree; None before the first node."""
        self.roster = Roster()
        self.phase: Phase = Gathering()
        self.aftermath = Aftermath()
        """Input of the next failure decision: budget, blame, exclusions."""
        self.restarts = 0
        self.round = -1
        self.term = settings.term
        """Term of the leader that formed ``round``."""
        self.newest = NO_ROUND
        """Term and number that other hosts must know. While a round is being stopped, already those
        of the next one, so that its start does not wait."""
        self.starts_from = settings.starts_from
        """Earliest time to start workers; ``Rounds`` resets it when it finds a complete round."""
        self.unreached_until = -math.inf
        """Until this time, workers may live on nodes that this master has given up."""
        self.formed_by = ""
        """Master that formed ``round``: this one, or the one from which it was taken over."""
        self.highest = settings.known[1]
        """Highest round of any node of the job, because numbers are never reused."""
        self.formed_before = False
        """Whether this master has had any round, formed or taken over."""
        self.served = Incarnations()
        """Nodes that have been in a round of this master."""
        self.world_nodes = 0
        """Number of nodes in the world of ``round``."""
        self.members: dict[int, str] = {}
        """Identities of the round's members, by node rank."""
        self.segments: dict[int, str] = {}
        """Their segments, if known."""
        self.sizes: Sizes = Counter()
        """Their number per segment."""
        self.former_ranks: dict[str, int] = {}
        """Ranks that are kept for removed members, by identity."""

    @property
    def formed(self) -> tuple[int, int]:
        """Term and number of the current or last round."""
        return (self.term, self.round) if self.round >= 0 else NO_ROUND

    @property
    def policy(self) -> PolicySpec:
        """Failure policy of this job."""
        return (self.job and self.job.policy) or _DEFAULT_POLICY

    @property
    def rescale_delay_s(self) -> float:
        """How long a new node waits for more before the world grows; infinity for never."""
        given = self.job.rescale_delay_s if self.job is not None else None
        return self.settings.rescale_delay_s if given is None else given

    @property
    def restarts_in_budget(self) -> int:
        """Number of restarts that currently count against ``--max-restarts``."""
        return self.aftermath.budget.used(self.restarts, self.policy, self.now)

    def usable(self, sizes: Sizes) -> int:
        """Return how many of these nodes a world of this job takes; 0 if they are too few."""
        assert self.job is not None
        job = self.job
        if len(self.roster) < job.min_nodes:
            return 0  # while nodes join, each costs the same, regardless of the number of segments
        return usable_size(sizes, job.min_nodes, job.max_nodes, job.node_unit)

    def place(self, segments: dict[int, str]) -> None:
        """Set the segments of the round's members, by node rank."""
        self.segments, self.sizes = segments, Counter(segments.values())

    def was_member(self, node: Node) -> bool:
        """Return whether a node has been in the current round, even as another incarnation."""
        rank = -1 if node.rank is None else node.rank
        return self.members.get(rank) == node.spec.node_id
