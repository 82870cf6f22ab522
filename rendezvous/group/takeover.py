"""Rebuilds the state of a new master from its nodes' claims.

``Takeover`` collects the claims and returns one value, ``TakenOver``, with which ``rounds``
continues.

Every node claims its last round. The highest claimed round is taken over with its number as soon as
all its members have reconnected; if it does not become complete in time, it is stopped on the
connected members. Nothing is decided earlier, because the first nodes to connect may have been in
an older round.
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
    """Result of the claims."""

    COMPLETE = "all nodes are connected and running"
    FAILED = "a node reports a failure, or did not reconnect"
    ENDED = "it had ended when its leader resigned"
    REGROUP = "nodes reconnected without its workers, or left"
    BROKEN = "the round was being started or stopped when the master was lost"
    FENCED = (
        "its workers were killed while there was no leader, or were being started or stopped then"
    )


def over(round_number: int, *, is_stale: bool) -> Stop:
    """Return the order to stop an outdated round's workers; stale ones are killed immediately."""
    return Stop(round_number, f"round {round_number} is over", is_stale=is_stale)


def is_spare(claim: Claim) -> bool:
    """Return whether a claim states that the node was in no round while a round was running.

    Such a claim has no world: ``nodes`` is 0. It prevents a new master from forming a world of
    spares before the members of the running round have reconnected.
    """
    return claim.nodes == 0


class ClaimedWorld(Struct):
    """A world with the highest number, and its connected members."""

    formed_by: str
    """ID of the master that formed it."""
    nodes: int
    members: dict[str, Claim] = field(default_factory=dict)
    has_failed: bool = False
    rank0_is_done: bool = False

    @property
    def missing(self) -> int:
        """Number of members that are not connected."""
        return max(0, self.nodes - len(self.members))

    @property
    def standing(self) -> tuple[bool, int]:
        """Sort key: the highest world is taken over."""
        return not self.missing, len(self.members)

    def absent(self) -> dict[int, str]:
        """Return the disconnected members by node rank, if a connected predecessor names them."""
        return {
            (claim.node_rank + 1) % self.nodes: claim.successor
            for claim in self.members.values()
            if claim.successor and claim.successor not in self.members
        }


class TakenOver(Struct, frozen=True):
    """State of the round that is taken over."""

    finding: TakeoverState
    round: int
    term: int
    """Term of the leader that formed it; 0 with a single endpoint."""
    world: ClaimedWorld
    """World of the round; without a master if no member of it is connected."""
    claims: dict[str, Claim]
    """Claims of all nodes, including nodes that were in no world or a different one."""
    lost: Failure | None
    """Loss of members that did not reconnect, if that ends the round."""
    departure: Failure | None
    """Departure of the first member that stopped in order to leave, if that ends the round."""
    reason: str
    """Why the round ends without a failure."""


_FEW = 8


class Takeover:
    """The claims of joining nodes, until a decision is made. O(1) for each report.

    Masters that were unaware of each other, e.g. after a partition, may have formed worlds with the
    same number. Then the complete one is taken over, or the one with the most connected members;
    the members of the others are stale.
    """

    def __init__(
        self, roster: Roster, now: float, grace_s: float, known: tuple[int, int] = (0, -1)
    ) -> None:
        """``known`` is the term and number of the newest round that listed hosts know."""
        self._known = known
        self._roster = roster
        self._grace_s = grace_s
        self.until = now + grace_s
        """When members that have not reconnected are given up."""
        self._newest = (0, -1)
        """Term and number of the newest round that any node was in; a round with a higher term is
        newer."""
        self._claims: dict[str, Claim] = {}
        self._worlds: dict[str, ClaimedWorld] = {}
        """Worlds of the highest round, by the master that formed them."""
        self._doomed: dict[str, int] = {}
        self._told: set[str] = set()
        self._departures: dict[str, Failure] = {}
        """Departures of nodes that have asked to leave, by identity."""

    @property
    def round(self) -> int:
        """The number of the newest round."""
        return self._newest[1]

    def claim(self, node_id: str, claim: Claim) -> None:
        """Record the claim of a joining node."""
        self._forget(node_id)
        if _age(claim) > self._newest:
            self._newest, self._worlds = _age(claim), {}
            for name in self._claims:
                self._look_at(name)
        self._keep(node_id, claim)

    def _world_of(self, claim: Claim) -> ClaimedWorld | None:
        """Return the world of a claim; None if it has none, or its round is not the newest."""
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
        """Find out whether the node's workers must be stopped regardless of later claims."""
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
        """Return the pending stop orders by node; each is returned once per stream."""
        doomed, self._doomed = self._doomed, {}
        self._told.update(doomed)
        # For the newest round, a failure ends it, so the order is the same for all members.
        return [
            (name, over(number, is_stale=_age(self._claims[name]) < self._newest))
            for name, number in doomed.items()
        ]

    def take(self, node: Node, message: NodeMessage) -> bool:
        """Process a node's report on its round before the decision; return whether it was one."""
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
        if claim is not None and claim.state is not ClaimState.STOPPED:  # that is final
            self._keep(node.spec.node_id, replace(claim, state=state))

    def _forget(self, node_id: str) -> None:
        """Drop the claim of a removed node, but not the round that it revealed."""
        claim = self._claims.pop(node_id, None)
        world = self._world_of(claim) if claim is not None else None
        if world is not None:
            world.members.pop(node_id, None)
        self._doomed.pop(node_id, None)
        self._told.discard(node_id)
        self._departures.pop(node_id, None)

    def leaves(self, node: Node, reason: str) -> bool:
        """Process a request to leave; return whether the node may still have workers, and stays."""
        spec = node.spec
        claim = self._claims.get(spec.node_id)
        if claim is None:
            return False
        if not is_spare(claim):
            departure = preempted(claim.node_rank, spec.host, spec.role, reason)
            self._departures[spec.node_id] = departure
        return claim.state is not ClaimState.STOPPED

    def node_removed(self, node_id: str) -> None:
        """Remove a node; if it had asked to leave, it is not missed, and its workers are dead."""
        claim = self._claims.get(node_id)
        if claim is None or node_id not in self._departures:
            self._forget(node_id)
            return
        self._doomed.pop(node_id, None)
        self._told.discard(node_id)
        self._keep(node_id, replace(claim, state=ClaimState.STOPPED))

    # --- the decision ------------------------------------------------------------------------

    def decide(self, now: float) -> TakenOver | None:
        """Return the result of the takeover; None while it waits for members."""
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
        if ended:  # the earlier leader has already decided what follows
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
        members = world.members
        stopped = (
            departure
            for node_id, departure in self._departures.items()
            if node_id in members and members[node_id].state is ClaimState.STOPPED
        )
        return next(stopped, None)

    def _gone(self, world: ClaimedWorld) -> int:
        """Return how many members have not joined, not even without workers of the round.

        A node that joined without them was restarted, or never received the round because the old
        master died while sending it. If members are not known by name, every node without another
        claim could be one.
        """
        named = set(world.absent().values())
        spares = {name for name, claim in self._claims.items() if is_spare(claim)}
        there = {node.spec.node_id for node in self._roster}
        may_be_members = there - world.members.keys() - (spares - named)
        return max(0, world.missing - len(may_be_members))

    def _judge(self, world: ClaimedWorld, departure: Failure | None, gone: int) -> TakeoverState:
        if not world.members:
            return TakeoverState.BROKEN
        is_short = world.missing or departure is not None
        if is_short and not gone and not _has_own_failure(world):
            # The other members' reports of lost connections are a consequence.
            return TakeoverState.REGROUP
        has_term = self._newest[0] > 0
        if world.has_failed or (gone and has_term):
            # The loss counts, even if the others were fenced before the election.
            return TakeoverState.FAILED
        if any(claim.state is ClaimState.STOPPED for claim in world.members.values()):
            return TakeoverState.FENCED if has_term else TakeoverState.BROKEN
        if self._newest < self._known:
            return TakeoverState.BROKEN
        return TakeoverState.FAILED if gone else TakeoverState.COMPLETE

    def _are_replaced(self, world: ClaimedWorld) -> bool:
        """Return whether all missing members have joined without a claim to this world.

        Then they were restarted, or never received the round, so they have no workers of it. The
        check takes time proportional to the world, so it is skipped if more than a few are missing.
        """
        if world.missing > _FEW or len(self._roster) < world.nodes:
            return False
        names = world.absent().values()
        return len(names) == world.missing and all(map(self._is_there, names))

    # --- messages ----------------------------------------------------------------------------

    def _not_back(self, world: ClaimedWorld, gone: int) -> Failure:
        """Return the failure record of members that have not reconnected, the first by name."""
        # A restarted member has lost its workers, but is connected.
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
        """Return which members are connected without workers of the round, the first by name."""
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
    """Return whether a failure occurred before the stop of the round was ordered."""
    return any(not failure.after_stop for failure in claim.failures)


def _has_own_failure(world: ClaimedWorld) -> bool:
    """Return whether there is a failure that cannot be a consequence of a lost member."""
    failures = (failure for claim in world.members.values() for failure in claim.failures)
    return world.has_failed and any(evidence(failure) is Evidence.OWN for failure in failures)
