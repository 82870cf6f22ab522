"""What a takeover makes of reported failures, as a bystander sees it, over all masters of a job.

A failure that a node has reported costs one restart, whichever master answers it, unless it may
follow from the loss of a member; and the cause that is told is one that happened.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from ft_run.rendezvous.group.group import Group
from ft_run.rendezvous.group.phases import GroupPhase
from ft_run.rendezvous.protocol.claim import Claim
from ft_run.rendezvous.protocol.failure import Evidence, Failure, FailureKind, evidence
from ft_run.rendezvous.protocol.messages import Assignment, Attend

_World = tuple[int, str]


class TakeoverError(AssertionError):
    """What a new master made of a round does not follow from what happened."""


@dataclass(slots=True)
class _Judgement:
    """How things stood when a master had decided what it takes over."""

    world: _World
    restarts: int
    there: set[str]
    """Identities of the nodes that attended."""
    failures: list[Failure]
    """Of the members that attended, those that must be answered."""
    has_ended: bool
    """The leader before has told a member what it had decided."""


@dataclass(slots=True)
class _Round:
    """A round that any master has formed."""

    node_ids: dict[str, str] = field(default_factory=dict)
    """Incarnations of its members, and their identities."""
    failures: defaultdict[str, list[Failure]] = field(default_factory=lambda: defaultdict(list))
    """By incarnation, what a master was told."""
    is_free: bool = False
    """A master has ended it for a reason that does not count."""


class TakeoverWatch:
    """What was reported to the masters of one job, and what the present one made of it."""

    def __init__(self) -> None:
        self._rounds: defaultdict[_World, _Round] = defaultdict(_Round)
        self._highest = -1
        self.new_master()

    def new_master(self) -> None:
        """Another master: it knows what its nodes tell it."""
        self._claims: dict[str, Claim] = {}
        """By incarnation, what was claimed last."""
        self._restarts: dict[str, int] = {}
        """By incarnation, how many restarts each knows of, spares too."""
        self._leaving: set[str] = set()
        """Incarnations of the nodes that have asked to go: what failed may follow from that."""
        self._judged: _Judgement | None = None
        self._has_decided = False

    # --- what is seen ------------------------------------------------------------------------

    def started(self, incarnation: str, node_id: str, assignment: Assignment) -> None:
        """A node was told to start the workers of a round, whether it hears of it or not."""
        self._rounds[assignment.round, assignment.formed_by].node_ids[incarnation] = node_id
        self._highest = max(self._highest, assignment.round)

    def failed(self, incarnation: str, world: _World, failure: Failure) -> None:
        """A master was told of a failure."""
        self._rounds[world].failures[incarnation].append(failure)

    def ended_freely(self, world: _World) -> None:
        """A master has ended a round for a reason that does not count."""
        self._rounds[world].is_free = True

    def leaves(self, incarnation: str) -> None:
        """A node has asked to go."""
        self._leaving.add(incarnation)

    def attended(self, attend: Attend) -> None:
        """A node comes and says what it was in last."""
        claim = attend.claim
        if attend.leaving:
            self.leaves(attend.node.incarnation)
        self._restarts[attend.node.incarnation] = claim.restarts if claim is not None else 0
        if claim is None or not claim.nodes:
            self._claims.pop(attend.node.incarnation, None)
            return
        self._claims[attend.node.incarnation] = claim
        if claim.ended:
            self.ended_freely((claim.round, claim.formed_by))  # answered by the leader before
        for failure in claim.failures:
            self.failed(attend.node.incarnation, (claim.round, claim.formed_by), failure)

    def look(self, group: Group, there: dict[str, str]) -> None:
        """See whether the group has decided what it takes over.

        Args:
            group: as it is now.
            there: nodes that attended before or attend now, identities by incarnation.
        """
        if self._has_decided or group.phase is GroupPhase.TAKING_OVER or group.round < 0:
            return
        self._has_decided = True
        claims = {name: claim for name, claim in self._claims.items() if name in there}
        highest = max((claim.round for claim in claims.values()), default=-1)
        worlds = {(c.round, c.formed_by) for c in claims.values() if c.round == highest}
        if len(worlds) != 1 or highest < self._highest:
            return  # formed anew, or another master has answered it already
        (world,) = worlds
        members = {name for name, c in claims.items() if (c.round, c.formed_by) == world}
        restarts = max(self._restarts[name] for name in there)
        taken = self._rounds[world]
        is_whole = members - self._leaving >= taken.node_ids.keys()
        failures = [
            failure
            for name in members
            for failure in taken.failures[name]
            if evidence(failure) is Evidence.OWN or (is_whole and not failure.after_stop)
        ]
        has_ended = any(claims[name].ended for name in members)
        self._judged = _Judgement(world, restarts, set(there.values()), failures, has_ended)

    # --- what follows ------------------------------------------------------------------------

    def formed(self, assignment: Assignment) -> None:
        """A master has formed a round; the first after a takeover answers what was taken over."""
        judged, self._judged = self._judged, None
        cause = assignment.cause
        if cause is not None and cause.kind is FailureKind.WORKER:
            self._happened(cause)
        if judged is None or assignment.round <= judged.world[0]:
            return
        taken = self._rounds[judged.world]
        if cause is not None and "did not reconnect" in cause.message:
            self._was_away(taken, judged, cause)
        if assignment.restarts > judged.restarts + (not judged.has_ended):
            raise TakeoverError(f"{assignment.restarts} restarts after {judged.restarts}")
        if judged.failures and cause is None and not taken.is_free:
            raise TakeoverError(f"{judged.world} was taken over as if not: {judged.failures}")

    def _happened(self, cause: Failure) -> None:
        rounds = self._rounds.values()
        known = (f for of in rounds for failures in of.failures.values() for f in failures)
        if cause not in known:
            raise TakeoverError(f"no node has reported {cause.summary()}")

    def _was_away(self, taken: _Round, judged: _Judgement, cause: Failure) -> None:
        away = set(taken.node_ids.values()) - judged.there
        # A node that was restarted, and told that it is a spare, may be a member without a name.
        if not away and cause.host != "unknown":
            raise TakeoverError(f"all members of {judged.world} were there: {cause.summary()}")
        if cause.host != "unknown" and cause.host not in away:
            raise TakeoverError(f"{cause.host} was there: {cause.summary()}")
