"""A master that starts from nothing takes over what its nodes say is running. Pure.

Every node claims the last round it was in. The highest claimed round is taken over with its
number and its restart count as soon as all its members are back; when it cannot become complete,
it is stopped on those that are there.
"""

import enum
from dataclasses import replace

from .failure import Failure
from .messages import Claim, ClaimState
from .roster import Roster


class Finding(enum.Enum):
    """What the claims amount to."""

    INCOMPLETE = "members are missing"
    COMPLETE = "all members are there and run"
    FAILED = "a member reports a failure, or never came back"
    BROKEN = "the round was being formed or stopped when the master was lost"


class Adoption:
    """The claims of attending nodes, until a decision is made."""

    def __init__(self, until: float) -> None:
        self.until = until
        """When members that have not come back are given up."""
        self.claims: dict[str, Claim] = {}
        self.round = -1
        """The highest round that any node was in."""
        self.restarts = 0
        """The restarts counted so far, as far as any node knows."""

    def claim(self, node_id: str, claim: Claim) -> None:
        """Take in what a node says of itself on attending."""
        self.claims[node_id] = claim
        self.round = max(self.round, claim.round)
        self.restarts = max(self.restarts, claim.restarts)

    def update(
        self,
        node_id: str,
        round_number: int,
        *,
        state: ClaimState | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Take in what a node reports before the decision."""
        claim = self.claims.get(node_id)
        if claim is None or claim.round != round_number:
            return
        failures = claim.failures
        if failure is not None and failure not in failures:
            failures += (failure,)
        self.claims[node_id] = replace(claim, state=state or claim.state, failures=failures)

    def keep(self, roster: Roster) -> None:
        """Forget the claims of nodes that are gone, but not the numbers they taught."""
        for name in [name for name in self.claims if roster.get(name) is None]:
            del self.claims[name]

    def alive(self, node_id: str) -> bool:
        """Return whether a node may still have workers."""
        claim = self.claims.get(node_id)
        return claim is not None and claim.state is not ClaimState.STOPPED

    def members(self) -> dict[str, Claim]:
        """Return the claims on the highest round."""
        return {name: claim for name, claim in self.claims.items() if claim.round == self.round}

    def missing(self) -> int:
        """Return how many members of the highest round are not there."""
        members = self.members()
        return max((claim.nodes for claim in members.values()), default=0) - len(members)

    def judge(self, nodes: int, now: float) -> Finding:
        """Return what the claims amount to, with ``nodes`` nodes attending at ``now``."""
        members = self.members()
        missing = self.missing()
        if any(claim.failures for claim in members.values()):
            return Finding.FAILED
        if not members or any(claim.state is ClaimState.STOPPED for claim in members.values()):
            return Finding.BROKEN
        if not missing:
            return Finding.COMPLETE
        # Nodes that never heard of the round, because the old master died while it told them,
        # stand here ready: it cannot become complete.
        if nodes - len(members) >= missing:
            return Finding.BROKEN
        return Finding.FAILED if now >= self.until else Finding.INCOMPLETE
