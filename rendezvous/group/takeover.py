"""A master that starts from nothing takes over what its nodes say is running. Pure.

Every node claims the last round it was in. The highest claimed round is taken over with its
number as soon as all its members are back; when it does not become complete in time, it is
stopped on those that are there. Nothing is decided earlier: whoever comes first may know less
than those who come next, and have been in a lower round.
"""

import enum
from collections.abc import Callable

from ...values import dataclass, field, replace
from ..protocol.failure import Evidence, Failure, evidence, preempted
from ..protocol.messages import Claim, ClaimState


class TakeoverState(enum.Enum):
    """What the claims amount to."""

    INCOMPLETE = "members are missing"
    COMPLETE = "all members are there and run"
    FAILED = "a member reports a failure, or never came back"
    REGROUP = "members are there without workers of it, or have left"
    BROKEN = "the round was being formed or stopped when the master was lost"


def is_spare(claim: Claim) -> bool:
    """Return whether a claim says that the node was in no round, though a round ran.

    Such a claim has no world: ``nodes`` is 0. It keeps a new master from forming a world of
    spares before the members of the running round are back.
    """
    return claim.nodes == 0


@dataclass(slots=True)
class _World:
    """A world with the highest number, and those of its members that are there."""

    nodes: int
    members: dict[str, Claim] = field(default_factory=dict)
    has_failed: bool = False
    rank0_is_done: bool = False

    @property
    def missing(self) -> int:
        """How many members are not there."""
        return max(0, self.nodes - len(self.members))

    def absent(self) -> dict[int, str]:
        """Return who is not there by node rank, where the one before it is there to tell."""
        return {
            (claim.node_rank + 1) % self.nodes: claim.successor
            for claim in self.members.values()
            if claim.successor and claim.successor not in self.members
        }


_NO_WORLD = _World(0)
_FEW = 8


class Adoption:
    """The claims of attending nodes, until a decision is made. O(1) for each report.

    Masters that knew nothing of each other may have formed worlds with one number, after a
    partition say. Then the one that is complete is taken over, or the one of which most members
    are there; the others' members are stale.
    """

    def __init__(self, until: float) -> None:
        self.until = until
        """When members that have not come back are given up."""
        self.round = -1
        """The highest round that any node was in."""
        self._claims: dict[str, Claim] = {}
        self._worlds: dict[str, _World] = {}
        """The worlds of the highest round, by the master that formed them."""
        self._doomed: dict[str, int] = {}
        self._told: set[str] = set()
        self._departures: dict[str, Failure] = {}
        """By identity, who has asked to go away."""

    def claim(self, node_id: str, claim: Claim) -> None:
        """Take in what a node says of itself on attending."""
        self.forget(node_id)
        self._claims[node_id] = claim
        if claim.round > self.round:
            self.round, self._worlds = claim.round, {}
            for name in self._claims:
                self._look_at(name)
        if claim.round == self.round and not is_spare(claim):
            self._worlds.setdefault(claim.formed_by, _World(claim.nodes))
        self._keep(node_id, claim)

    def _world_of(self, claim: Claim) -> _World | None:
        is_of_the_highest = claim.round == self.round and not is_spare(claim)
        return self._worlds.get(claim.formed_by) if is_of_the_highest else None

    def _keep(self, node_id: str, claim: Claim) -> None:
        self._claims[node_id] = claim
        world = self._world_of(claim)
        if world is not None:
            world.members[node_id] = claim
            world.rank0_is_done |= claim.node_rank == 0 and claim.state is ClaimState.DONE
        self._look_at(node_id)

    def _look_at(self, node_id: str) -> None:
        """Find out whether the node's workers must be stopped whatever else comes to light."""
        claim = self._claims[node_id]
        world = self._world_of(claim)
        if world is not None and not world.has_failed and _has_failed(claim):
            world.has_failed = True
            for name in world.members:
                self._look_at(name)
        is_over = world.has_failed if world is not None else claim.round < self.round
        if is_over and claim.state is not ClaimState.STOPPED and node_id not in self._told:
            self._doomed[node_id] = claim.round

    def take_stops(self) -> dict[str, int]:
        """Return who is to be told to stop which round; each is returned once per stream."""
        doomed, self._doomed = self._doomed, {}
        self._told.update(doomed)
        return doomed

    def update(
        self,
        node_id: str,
        round_number: int,
        *,
        state: ClaimState | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Take in what a node reports before the decision."""
        claim = self._claims.get(node_id)
        if claim is None or claim.round != round_number or is_spare(claim):
            return
        failures = claim.failures
        if failure is not None and failure not in failures:
            failures += (failure,)
        if claim.state is ClaimState.STOPPED:
            state = None  # what is dead stays dead
        self._keep(node_id, replace(claim, state=state or claim.state, failures=failures))

    @property
    def rank0_is_done(self) -> bool:
        """Whether the node of rank 0 of the world to be taken over has said that it succeeded.

        With ``--success-policy rank0``, that is what its node says as soon as rank 0 has.
        """
        return self._chosen().rank0_is_done

    def forget(self, node_id: str) -> None:
        """Drop the claim of a node that is gone, but not the round it taught."""
        claim = self._claims.pop(node_id, None)
        world = self._world_of(claim) if claim is not None else None
        if world is not None:
            world.members.pop(node_id, None)
        self._doomed.pop(node_id, None)
        self._told.discard(node_id)
        self._departures.pop(node_id, None)

    def leaves(self, node_id: str, reason: str, host: str, role: str) -> None:
        """A node has asked to go away; it stays until its workers are dead."""
        claim = self._claims.get(node_id)
        if claim is not None and not is_spare(claim):
            self._departures[node_id] = preempted(claim.node_rank, host, role, reason)

    def node_removed(self, node_id: str) -> None:
        """Who has asked to go is gone: nobody waits for it, and it has no workers any more."""
        claim = self._claims.get(node_id)
        if claim is None or node_id not in self._departures:
            self.forget(node_id)
            return
        self._doomed.pop(node_id, None)
        self._told.discard(node_id)
        self._keep(node_id, replace(claim, state=ClaimState.STOPPED))

    @property
    def departure(self) -> Failure | None:
        """The first member of the world to be taken over that has stopped in order to go."""
        members = self._chosen().members
        stopped = (
            departure
            for node_id, departure in self._departures.items()
            if node_id in members and members[node_id].state is ClaimState.STOPPED
        )
        return next(stopped, None)

    def claims(self) -> dict[str, Claim]:
        """Return what each node claims."""
        return dict(self._claims)

    def formed_by(self) -> str:
        """Return the master that formed the world to be taken over; empty if there is none."""
        return max(self._worlds, key=self._rank_of, default="")

    def _rank_of(self, formed_by: str) -> tuple[bool, int]:
        world = self._worlds[formed_by]
        return (not world.missing, len(world.members))

    def _chosen(self) -> _World:
        return self._worlds.get(self.formed_by(), _NO_WORLD)

    def members(self) -> dict[str, Claim]:
        """Return the claims on the world to be taken over."""
        return dict(self._chosen().members)

    def alive(self, node_id: str) -> bool:
        """Return whether a node may still have workers."""
        claim = self._claims.get(node_id)
        return claim is not None and claim.state is not ClaimState.STOPPED

    def missing(self) -> int:
        """Return how many members of the world to be taken over are not there."""
        return self._chosen().missing

    def absent(self) -> dict[int, str]:
        """Return which of them are known by name, by node rank."""
        return self._chosen().absent()

    def gone(self, nodes: int, is_there: Callable[[str], bool]) -> int:
        """Return how many members do not attend, not even without workers of the round.

        Who attends without them was started again, or has never heard of the round because the
        old master died while it told them. Of members that nobody knows by name, everybody who
        claims nothing else may be one.

        Args:
            nodes: how many attend.
            is_there: whether a node of that identity attends.
        """
        world = self._chosen()
        named = {name for name in world.absent().values() if is_there(name)}
        others = sum(
            not (is_spare(claim) or name in world.members or name in named) and is_there(name)
            for name, claim in self._claims.items()
        )
        unclaimed = nodes - sum(map(is_there, self._claims)) - len(named - self._claims.keys())
        return max(0, world.missing - len(named) - others - unclaimed)

    def judge(self, nodes: int, now: float, is_there: Callable[[str], bool]) -> TakeoverState:
        """Return what the claims amount to.

        Args:
            nodes: how many attend.
            now: the group's time in seconds.
            is_there: whether a node of that identity attends.
        """
        world = self._chosen()
        members, missing = world.members, world.missing
        is_clear = not missing or _are_replaced(world, nodes, is_there)
        if now < self.until and not (members and is_clear):
            return TakeoverState.INCOMPLETE
        if not members:
            return TakeoverState.BROKEN
        gone = self.gone(nodes, is_there)
        is_short = missing or self.departure is not None
        if is_short and not gone and not _has_own_failure(world):
            # What the others say of their lost connections follows from that.
            return TakeoverState.REGROUP
        if world.has_failed:
            return TakeoverState.FAILED
        if any(claim.state is ClaimState.STOPPED for claim in members.values()):
            return TakeoverState.BROKEN
        return TakeoverState.FAILED if gone else TakeoverState.COMPLETE


def _are_replaced(world: _World, nodes: int, is_there: Callable[[str], bool]) -> bool:
    """Return whether all who are missing attend, but say nothing of this world.

    Then they were started again, or have never heard of the round: nobody has workers of it. To
    look takes time that grows with the world, so it is done when few can be missing.
    """
    if world.missing > _FEW or nodes < world.nodes:
        return False
    names = world.absent().values()
    return len(names) == world.missing and all(map(is_there, names))


def _has_failed(claim: Claim) -> bool:
    """Return whether a failure ended the round, rather than its stop some workers."""
    return any(not failure.after_stop for failure in claim.failures)


def _has_own_failure(world: _World) -> bool:
    """Return whether a failure is known that cannot follow from the loss of a member."""
    failures = (failure for claim in world.members.values() for failure in claim.failures)
    return world.has_failed and any(evidence(failure) is Evidence.OWN for failure in failures)
