"""A master that starts from nothing takes over what its nodes say is running. Pure.

Every node claims the last round it was in. The highest claimed round is taken over with its
number as soon as all its members are back; when it does not become complete in time, it is
stopped on those that are there. Nothing is decided earlier: whoever comes first may know less
than those who come next, and have been in a lower round.
"""

import enum
from dataclasses import replace

from .failure import Failure
from .messages import Claim, ClaimState


class Finding(enum.Enum):
    """What the claims amount to."""

    INCOMPLETE = "members are missing"
    COMPLETE = "all members are there and run"
    FAILED = "a member reports a failure, or never came back"
    BROKEN = "the round was being formed or stopped when the master was lost"


def is_spare(claim: Claim) -> bool:
    """Return whether a claim says that the node was in no round, though a round ran.

    Such a claim has no world: ``nodes`` is 0. It keeps a new master from forming a world of
    spares before the members of the running round are back.
    """
    return claim.nodes == 0


class Adoption:
    """The claims of attending nodes, until a decision is made. O(1) for each report."""

    def __init__(self, until: float) -> None:
        self.until = until
        """When members that have not come back are given up."""
        self.round = -1
        """The highest round that any node was in."""
        self._claims: dict[str, Claim] = {}
        self._members: dict[str, Claim] = {}
        self._nodes = 0
        self._failed = False
        self._doomed: dict[str, int] = {}
        self._told: set[str] = set()

    def claim(self, node_id: str, claim: Claim) -> None:
        """Take in what a node says of itself on attending."""
        self.forget(node_id)
        self._claims[node_id] = claim
        if claim.round > self.round:
            self.round, self._nodes, self._failed = claim.round, 0, False
            self._members = {}
            for name in self._claims:
                self._look_at(name)
        if claim.round == self.round and not is_spare(claim):
            self._members[node_id] = claim
            self._nodes = claim.nodes
        self._look_at(node_id)

    def _look_at(self, node_id: str) -> None:
        """Find out whether the node's workers must be stopped whatever else comes to light."""
        claim, is_member = self._claims[node_id], node_id in self._members
        if is_member and not self._failed and _has_failed(claim):
            self._failed = True
            for name in self._members:
                self._look_at(name)
        is_over = self._failed if is_member else claim.round < self.round
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
        claim = replace(claim, state=state or claim.state, failures=failures)
        self._claims[node_id] = claim
        if node_id in self._members:
            self._members[node_id] = claim
            self._look_at(node_id)

    def forget(self, node_id: str) -> None:
        """Drop the claim of a node that is gone, but not the round it taught."""
        self._claims.pop(node_id, None)
        self._members.pop(node_id, None)
        self._doomed.pop(node_id, None)
        self._told.discard(node_id)

    def claims(self) -> dict[str, Claim]:
        """Return what each node claims."""
        return dict(self._claims)

    def members(self) -> dict[str, Claim]:
        """Return the claims on the highest round."""
        return dict(self._members)

    def alive(self, node_id: str) -> bool:
        """Return whether a node may still have workers."""
        claim = self._claims.get(node_id)
        return claim is not None and claim.state is not ClaimState.STOPPED

    def missing(self) -> int:
        """Return how many members of the highest round are not there."""
        return max(0, self._nodes - len(self._members))

    def judge(self, nodes: int, now: float) -> Finding:
        """Return what the claims amount to, with ``nodes`` nodes attending at ``now``."""
        members, missing = self._members, self.missing()
        if now < self.until and (missing or not members):
            return Finding.INCOMPLETE
        if self._failed:
            return Finding.FAILED
        if not members or any(claim.state is ClaimState.STOPPED for claim in members.values()):
            return Finding.BROKEN
        if not missing:
            # Two masters that knew nothing of each other may have used one number.
            is_whole = len({claim.node_rank for claim in members.values()}) == self._nodes
            return Finding.COMPLETE if is_whole else Finding.BROKEN
        # Nodes that never heard of the round, because the old master died while it told them,
        # stand here ready, and nobody else is missing: no node was lost.
        spares = sum(is_spare(claim) for claim in self._claims.values())
        if nodes - len(members) - spares >= missing:
            return Finding.BROKEN
        return Finding.FAILED


def _has_failed(claim: Claim) -> bool:
    """Return whether a failure ended the round, rather than its stop some workers."""
    return any(not failure.after_stop for failure in claim.failures)
