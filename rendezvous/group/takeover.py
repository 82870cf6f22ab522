"""A master that starts from nothing takes over what its nodes say is running. Pure.

``Takeover`` owns what the nodes claim and returns one value, ``TakenOver``; ``rounds`` goes on from
there.

Every node claims the last round it was in. The highest claimed round is taken over with its
number as soon as all its members are back; when it does not become complete in time, it is
stopped on those that are there. Nothing is decided earlier: a node that comes first may know less
than those that come next, and have been in a lower round.
"""

import enum

from msgspec import Struct, field
from msgspec.structs import replace

from ... import defaults
from ..protocol.claim import Claim, ClaimState
from ..protocol.failure import Evidence, Failure, evidence, node_lost, preempted
from ..protocol.messages import Done, Failed, NodeMessage, Stop, Stopped
from .roster import Node, Roster


class TakeoverState(enum.Enum):
    """What the claims amount to."""

    COMPLETE = "all nodes are connected and running"
    FAILED = "a node reports a failure, or did not reconnect"
    ENDED = "it had ended when its leader resigned"
    REGROUP = "nodes reconnected without its workers, or left"
    BROKEN = "the round was being started or stopped when the master was lost"
    FENCED = (
        "its workers were killed while there was no leader, or were being started or stopped then"
    )


def over(round_number: int, *, is_stale: bool) -> Stop:
    """Return the order to stop the workers of a round that is over.

    Args:
        round_number: which.
        is_stale: the others have left it behind: the workers are killed at once.
    """
    return Stop(round_number, f"round {round_number} is over", is_stale=is_stale)


def is_spare(claim: Claim) -> bool:
    """Return whether a claim says that the node was in no round, though a round ran.

    Such a claim has no world: ``nodes`` is 0. It keeps a new master from forming a world of
    spares before the members of the running round are back.
    """
    return claim.nodes == 0


class ClaimedWorld(Struct):
    """A world with the highest number, and those of its members that are there."""

    formed_by: str
    """The master that formed it."""
    nodes: int
    members: dict[str, Claim] = field(default_factory=dict)
    has_failed: bool = False
    rank0_is_done: bool = False

    @property
    def missing(self) -> int:
        """How many members are not there."""
        return max(0, self.nodes - len(self.members))

    @property
    def standing(self) -> tuple[bool, int]:
        """The world that stands highest is taken over."""
        return not self.missing, len(self.members)

    def absent(self) -> dict[int, str]:
        """Return by node rank which nodes are not there, where the one before is there to tell."""
        return {
            (claim.node_rank + 1) % self.nodes: claim.successor
            for claim in self.members.values()
            if claim.successor and claim.successor not in self.members
        }


class TakenOver(Struct, frozen=True):
    """The round that a takeover goes on with, and how it stands."""

    finding: TakeoverState
    round: int
    term: int
    """Of the leader that formed it; 0 where there is one endpoint."""
    world: ClaimedWorld
    """That of the round; without a master where no member of it is there."""
    claims: dict[str, Claim]
    """What each node claims, also those that were in no world or another."""
    lost: Failure | None
    """That members have not come back, where that ends the round."""
    departure: Failure | None
    """The first member that has stopped in order to go, where that ends the round."""
    reason: str
    """Why the round ends without a failure."""


_FEW = 8


class Takeover:
    """The claims of attending nodes, until a decision is made. O(1) for each report.

    Masters that knew nothing of each other may have formed worlds with one number, after a
    partition say. Then the one that is complete is taken over, or the one of which most members
    are there; the others' members are stale.
    """

    def __init__(
        self, roster: Roster, now: float, grace_s: float, known: tuple[int, int] = (0, -1)
    ) -> None:
        """Begin without a claim.

        Args:
            roster: the nodes that attend.
            now: the group's time in seconds.
            grace_s: how long members may take to come back.
            known: term and number of the newest round that there has been, if that is known.
        """
        self._known = known
        self._roster = roster
        self._grace_s = grace_s
        self.until = now + grace_s
        """When members that have not come back are given up."""
        self._newest = (0, -1)
        """Term and number of the newest round that any node was in: what a leader has formed is
        newer than all that earlier ones have."""
        self._claims: dict[str, Claim] = {}
        self._worlds: dict[str, ClaimedWorld] = {}
        """The worlds of the highest round, by the master that formed them."""
        self._doomed: dict[str, int] = {}
        self._told: set[str] = set()
        self._departures: dict[str, Failure] = {}
        """By identity, the nodes that have asked to go away."""

    @property
    def round(self) -> int:
        """The number of the newest round."""
        return self._newest[1]

    def claim(self, node_id: str, claim: Claim) -> None:
        """Take in what a node says of itself on attending."""
        self._forget(node_id)
        if _age(claim) > self._newest:
            self._newest, self._worlds = _age(claim), {}
            for name in self._claims:
                self._look_at(name)
        self._keep(node_id, claim)

    def _world_of(self, claim: Claim) -> ClaimedWorld | None:
        """Return the world of a claim; None where there is none, or it is not the newest."""
        if _age(claim) != self._newest or is_spare(claim):
            return None
        return self._worlds.setdefault(claim.formed_by, ClaimedWorld(claim.formed_by, claim.nodes))

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
        is_over = world.has_failed if world is not None else _age(claim) < self._newest
        if is_over and claim.state is not ClaimState.STOPPED and node_id not in self._told:
            self._doomed[node_id] = claim.round

    def take_stops(self) -> list[tuple[str, Stop]]:
        """Return which nodes are to be told what; each is returned once per stream."""
        doomed, self._doomed = self._doomed, {}
        self._told.update(doomed)
        # Of the highest round it is a failure that ends it, for all alike.
        return [
            (name, over(number, is_stale=_age(self._claims[name]) < self._newest))
            for name, number in doomed.items()
        ]

    def take(self, node: Node, message: NodeMessage) -> bool:
        """Take in what a node reports of its round before the decision; return whether it does."""
        match message:
            case Failed(round_number, failure):
                self._failed(node, round_number, failure)
            case Done(round_number):
                self._reached(node, round_number, ClaimState.DONE)
            case Stopped(round_number, offer):
                node.offer = offer
                self._reached(node, round_number, ClaimState.STOPPED)
            case _:
                return False
        return True

    def _claim_of(self, node: Node, round_number: int) -> Claim | None:
        claim = self._claims.get(node.spec.node_id)
        is_of_it = claim is not None and claim.round == round_number and not is_spare(claim)
        return claim if is_of_it else None

    def _failed(self, node: Node, round_number: int, failure: Failure) -> None:
        claim = self._claim_of(node, round_number)
        if claim is None or len(claim.failures) >= defaults.FAILURES_IN_VERDICT:
            return
        failure = node.own(failure, claim)
        if failure not in claim.failures:
            self._keep(node.spec.node_id, replace(claim, failures=(*claim.failures, failure)))

    def _reached(self, node: Node, round_number: int, state: ClaimState) -> None:
        claim = self._claim_of(node, round_number)
        if claim is not None and claim.state is not ClaimState.STOPPED:  # what is dead stays dead
            self._keep(node.spec.node_id, replace(claim, state=state))

    def _forget(self, node_id: str) -> None:
        """Drop the claim of a node that is gone, but not the round it taught."""
        claim = self._claims.pop(node_id, None)
        world = self._world_of(claim) if claim is not None else None
        if world is not None:
            world.members.pop(node_id, None)
        self._doomed.pop(node_id, None)
        self._told.discard(node_id)
        self._departures.pop(node_id, None)

    def leaves(self, node: Node, reason: str) -> bool:
        """A node has asked to go away; return whether it may still have workers, and stays."""
        spec = node.spec
        claim = self._claims.get(spec.node_id)
        if claim is None:
            return False
        if not is_spare(claim):
            departure = preempted(claim.node_rank, spec.host, spec.role, reason)
            self._departures[spec.node_id] = departure
        return claim.state is not ClaimState.STOPPED

    def node_removed(self, node_id: str) -> None:
        """A node is gone; one that had asked to go is not missed, and has no workers any more."""
        claim = self._claims.get(node_id)
        if claim is None or node_id not in self._departures:
            self._forget(node_id)
            return
        self._doomed.pop(node_id, None)
        self._told.discard(node_id)
        self._keep(node_id, replace(claim, state=ClaimState.STOPPED))

    # --- the decision ------------------------------------------------------------------------

    def decide(self, now: float) -> TakenOver | None:
        """Return what is taken over; None while members are waited for."""
        world = max(
            self._worlds.values(), key=lambda world: world.standing, default=ClaimedWorld("", 0)
        )
        is_clear = not world.missing or self._are_replaced(world)
        if now < self.until and not (world.members and is_clear):
            return None
        ended = next((claim.ended for claim in world.members.values() if claim.ended), "")
        departure, gone = self._departure(world), self._gone(world)
        finding = self._judge(world, departure, gone)
        lost, reason = None, ""
        if ended:  # the earlier leader has decided what follows from it
            finding, reason = TakeoverState.ENDED, ended
        if finding is TakeoverState.FAILED:
            lost = self._not_back(world, gone) if gone else None
        elif finding is TakeoverState.REGROUP:
            reason = departure.summary() if departure is not None else self._who_returned(world)
        elif finding in (TakeoverState.BROKEN, TakeoverState.FENCED):
            reason = finding.value
        return TakenOver(
            finding=finding,
            round=self.round,
            term=self._newest[0],
            world=world,
            claims=self._claims,
            lost=lost,
            departure=departure if finding is TakeoverState.REGROUP else None,
            reason=reason,
        )

    def _is_there(self, node_id: str) -> bool:
        return self._roster.get(node_id) is not None

    def _departure(self, world: ClaimedWorld) -> Failure | None:
        """Return the first member that has stopped in order to go."""
        members = world.members
        stopped = (
            departure
            for node_id, departure in self._departures.items()
            if node_id in members and members[node_id].state is ClaimState.STOPPED
        )
        return next(stopped, None)

    def _gone(self, world: ClaimedWorld) -> int:
        """Return how many members do not attend, not even without workers of the round.

        A node that attends without them was started again, or has never heard of the round because
        the old master died while it told them. Of members that are not known by name, every node
        that claims nothing else may be one.
        """
        named = set(world.absent().values())
        spares = {name for name, claim in self._claims.items() if is_spare(claim)}
        there = {node.spec.node_id for node in self._roster}
        may_be_members = there - world.members.keys() - (spares - named)
        return max(0, world.missing - len(may_be_members))

    def _judge(self, world: ClaimedWorld, departure: Failure | None, gone: int) -> TakeoverState:
        """Return what the claims amount to.

        Args:
            world: that is taken over.
            departure: of a member of it, in order.
            gone: how many of its members do not attend at all.
        """
        if not world.members:
            return TakeoverState.BROKEN
        is_short = world.missing or departure is not None
        if is_short and not gone and not _has_own_failure(world):
            # What the others say of their lost connections follows from that.
            return TakeoverState.REGROUP
        has_term = self._newest[0] > 0
        if world.has_failed or (gone and has_term):
            # The loss counts, no matter whether the others were fenced before the election.
            return TakeoverState.FAILED
        if any(claim.state is ClaimState.STOPPED for claim in world.members.values()):
            return TakeoverState.FENCED if has_term else TakeoverState.BROKEN
        if self._newest < self._known:
            return TakeoverState.BROKEN
        return TakeoverState.FAILED if gone else TakeoverState.COMPLETE

    def _are_replaced(self, world: ClaimedWorld) -> bool:
        """Return whether all missing members attend, but say nothing of this world.

        Then they were started again, or have never heard of the round: they have no workers of it.
        To look takes time that grows with the world, so it is done when few can be missing.
        """
        if world.missing > _FEW or len(self._roster) < world.nodes:
            return False
        names = world.absent().values()
        return len(names) == world.missing and all(map(self._is_there, names))

    # --- in words ----------------------------------------------------------------------------

    def _not_back(self, world: ClaimedWorld, gone: int) -> Failure:
        """Return the failure record of members that have not come back, the first by name."""
        # A member that was started again has lost its workers, but is there.
        away = {rank: name for rank, name in world.absent().items() if not self._is_there(name)}
        rank = min(away, default=None)
        name = "unknown" if rank is None else away[rank]
        others = f", nor did {gone - 1} other(s)" if gone > 1 else ""
        why = (
            f"it did not reconnect to the new master with its workers of round {self.round} "
            f"within {self._grace_s:g} s{others}"
        )
        return node_lost(rank, name.rpartition("/")[0] or name, "", why)

    def _who_returned(self, world: ClaimedWorld) -> str:
        """Say which members are there without workers of the round, the first by name."""
        named = [(rank, self._roster.get(name)) for rank, name in sorted(world.absent().items())]
        rank, node = next(((rank, node) for rank, node in named if node is not None), (0, None))
        if node is None:
            return f"nodes of round {self.round} restarted, or did not know it"
        where = f"node {rank} ({node.spec.host})"
        others = world.missing - 1
        if node.spec.node_id in self._claims:
            what = f"did not know round {self.round} when the master was lost"
            more = f", nor did {others} other(s)"
        else:
            what = f"restarted without its workers of round {self.round}"
            more = f", and so did {others} other(s)"
        return f"{where} {what}" + (more if others else "")


def _age(claim: Claim) -> tuple[int, int]:
    return claim.term, claim.round


def _has_failed(claim: Claim) -> bool:
    """Return whether a failure ended the round, rather than its stop some workers."""
    return any(not failure.after_stop for failure in claim.failures)


def _has_own_failure(world: ClaimedWorld) -> bool:
    """Return whether a failure is known that cannot follow from the loss of a member."""
    failures = (failure for claim in world.members.values() for failure in claim.failures)
    return world.has_failed and any(evidence(failure) is Evidence.OWN for failure in failures)
