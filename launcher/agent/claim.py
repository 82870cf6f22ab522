"""This node's report of its last round, which lets a new master take over the round."""

import time
from collections.abc import Iterable

from msgspec.structs import replace

from ... import defaults
from ...rendezvous.protocol.claim import Claim, ClaimState
from ...rendezvous.protocol.failure import Failure, FailureKind, evidence
from ...rendezvous.protocol.messages import Assignment, Resigned


class OwnClaim:
    """The claim of this node, updated while its round runs."""

    def __init__(self) -> None:
        self._claim: Claim | None = None
        self._since = 0.0
        self.is_checked = False

    def present(self) -> Claim | None:
        """Return the claim as of now; None before the node's first round."""
        if self._claim is None:
            return None
        claim = replace(self._claim, checked=self.is_checked)
        if claim.past is None:
            return claim
        since_s = int(time.monotonic() - self._since)
        return replace(claim, past=replace(claim.past, since_s=since_s))

    @property
    def state(self) -> ClaimState | None:
        """The state of the workers of the round; None before the first round."""
        return self._claim.state if self._claim is not None else None

    @property
    def first_rank(self) -> int | None:
        """The rank of local rank 0 in the last round; None for a spare."""
        claim = self._claim
        return claim.rank_offset if claim is not None and claim.nodes else None

    def is_first_but(self, failures: Iterable[Failure]) -> bool:
        """Return whether ``failures`` show all nodes of lower rank in the last round as lost."""
        claim = self._claim
        if claim is None or not claim.nodes:
            return False
        lost = {one.node_rank for one in failures if one.kind is FailureKind.NODE_LOST}
        return all(rank in lost for rank in range(claim.node_rank))

    @property
    def has_peers(self) -> bool:
        """Whether other nodes were in the world of the last round."""
        return self._claim is not None and self._claim.nodes > 1

    def knows_nothing_after(self, round_number: int) -> bool:
        """Return whether this node was not in any later round."""
        return self._claim is None or self._claim.round <= round_number

    def started(self, assignment: Assignment) -> None:
        """Start the claim of a round whose workers are being started."""
        self._since = time.monotonic()
        self._claim = Claim(
            round=assignment.round,
            formed_by=assignment.formed_by,
            restarts=assignment.restarts,
            nodes=assignment.nodes,
            node_rank=assignment.node_rank,
            rank_offset=assignment.rank_offset,
            successor=assignment.successor,
            state=ClaimState.RUNNING,
            past=assignment.past,
            term=assignment.term,
        )

    def resigned(self, resigned: Resigned) -> None:
        """Record a leader's decision on the last round, made before it resigned."""
        claim = self._claim
        if claim is None:
            return
        claim = replace(claim, clear=resigned.clear)
        if (claim.round, claim.formed_by) == (resigned.round, resigned.formed_by):
            claim = replace(
                claim,
                ended=resigned.reason,
                restarts=resigned.restarts,
                past=resigned.past,
                failures=(),
            )
            self._since = time.monotonic()
        self._claim = claim

    def became_spare(self) -> None:
        """Claim not to be in any world, so that no later master counts this node as a member."""
        known = self._claim or Claim(0, "", 0, 0, 0, 0, "", ClaimState.STOPPED)
        self._claim = replace(
            known,
            nodes=0,
            node_rank=0,
            rank_offset=0,
            successor="",
            state=ClaimState.STOPPED,
            failures=(),
        )

    def failed(self, failure: Failure) -> None:
        """Record the failure of a worker of the round."""
        assert self._claim is not None
        failures = [*self._claim.failures, failure]
        self._claim = replace(self._claim, failures=_bounded(failures))

    def done(self) -> None:
        """Record that the deciding workers have exited with 0."""
        assert self._claim is not None
        self._claim = replace(self._claim, state=ClaimState.DONE)

    def stopped(self, round_number: int) -> None:
        """Record that no worker of that round is alive; ignored for another round."""
        if self._claim is not None and self._claim.round == round_number:
            self._claim = replace(self._claim, state=ClaimState.STOPPED)


def _bounded(failures: list[Failure]) -> tuple[Failure, ...]:
    """Return the failures that fit the claim into a message and into a verdict.

    Likely root causes are kept, the first of equal ones, and every worker that survives SIGKILL.
    """
    while len(failures) > 1 and (
        len(failures) > defaults.FAILURES_IN_VERDICT
        or sum(map(_text_chars, failures)) > defaults.CLAIM_TEXT_MAX_CHARS
    ):
        ranked = [(one.kind is not FailureKind.STUCK, evidence(one)) for one in failures]
        least = max(range(len(failures)), key=lambda index: (ranked[index], index))
        del failures[least]
    return tuple(failures)


def _text_chars(failure: Failure) -> int:
    texts = (failure.error_file, failure.error_json, failure.message, failure.stderr_tail)
    return sum(map(len, texts))
