"""What is known of a job, whichever part of the group has found it out. Pure."""

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
    """What a group remembers of its job: all parts read it, the comments say which one writes."""

    def __init__(self, settings: GroupSettings, master_id: str) -> None:
        """Begin with no node and no round.

        Args:
            settings: the times to keep.
            master_id: random, one per master process; it tells worlds apart.
        """
        self.settings = settings
        self.master_id = master_id
        self.now = 0.0
        """The time of the event that is being handled."""
        self.job: JobSpec | None = None
        """What all nodes have to agree on; None before the first of them."""
        self.roster = Roster()
        self.phase: Phase = Gathering()
        self.aftermath = Aftermath()
        """What the answer to the next failure depends on: budget, blame, exclusions."""
        self.restarts = 0
        self.round = -1
        self.term = settings.term
        """Of the leader that formed ``round``."""
        self.newest = NO_ROUND
        """Term and number of what other hosts must know of: the round, and the next one already
        when it is being stopped, so that its start waits for nothing."""
        self.starts_from = settings.starts_from
        """No worker is started earlier; ``Rounds`` ends this when it finds a round whole."""
        self.unreached_until = -math.inf
        """Until then, workers may live on nodes that this master has given up."""
        self.formed_by = ""
        """The master that formed ``round``: this one, or the one that it was taken over from."""
        self.highest = settings.known[1]
        """The highest round that any node of the job has been in: numbers never repeat."""
        self.formed_before = False
        """Some round is or was this master's own, formed or taken over."""
        self.served = Incarnations()
        """The nodes that have been in a round of this master."""
        self.world_nodes = 0
        """Nodes in the world of ``round``."""
        self.members: dict[int, str] = {}
        """Identities of the round's members, by node rank."""
        self.segments: dict[int, str] = {}
        """Their segments, where they are known."""
        self.sizes: Sizes = Counter()
        """How many of them are of each segment."""
        self.former_ranks: dict[str, int] = {}
        """Ranks that are kept for members that are gone, by identity."""

    @property
    def formed(self) -> tuple[int, int]:
        """Term and number of the present or last round."""
        return (self.term, self.round) if self.round >= 0 else NO_ROUND

    @property
    def policy(self) -> PolicySpec:
        """How failures of this job are answered."""
        return (self.job and self.job.policy) or _DEFAULT_POLICY

    @property
    def rescale_delay_s(self) -> float:
        """How long a newcomer waits for more before the world grows; infinity: for ever."""
        given = self.job.rescale_delay_s if self.job is not None else None
        return self.settings.rescale_delay_s if given is None else given

    @property
    def restarts_in_budget(self) -> int:
        """How many restarts count against ``--max-restarts`` now."""
        return self.aftermath.budget.used(self.restarts, self.policy, self.now)

    def usable(self, sizes: Sizes) -> int:
        """Return how many of these nodes a world of this job takes; 0 when they are too few."""
        assert self.job is not None
        job = self.job
        if len(self.roster) < job.min_nodes:
            return 0  # while nodes join, each of them costs the same, however many segments
        return usable_size(sizes, job.min_nodes, job.max_nodes, job.node_unit)

    def place(self, segments: dict[int, str]) -> None:
        """Remember the segments of the round's members, by node rank."""
        self.segments, self.sizes = segments, Counter(segments.values())

    def was_member(self, node: Node) -> bool:
        """Return whether a node has been in the present round, also as another incarnation."""
        rank = -1 if node.rank is None else node.rank
        return self.members.get(rank) == node.spec.node_id
