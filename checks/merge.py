"""Combines the answers of check workers into the record of their node. No I/O, no clock."""

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct, field

from ..rendezvous.protocol.failure import blames_peer
from .records import LOWER_IS_BETTER, METRICS, Fact, Metrics, Phase, Record


class Blame(IntEnum):
    """How likely it is that a worker failed on its own; the lowest sets the node's reason."""

    OWN = 0
    """It exited on its own, hung alone, or reported an error."""
    HELD_UP = 1
    """It did not answer, and another worker may be the cause."""
    PEER = 2
    """It reported that it lost another worker."""


class WorkerAnswer(Struct, frozen=True):
    """The result of an order in one worker."""

    local_rank: int
    failure: str = ""
    held_up: bool = False
    """It did not answer, but another worker may be the cause: it was waiting for others, or others
    failed before its time limit."""
    metrics: Metrics = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def blame(self) -> Blame:
        """How likely the failure is this worker's own."""
        if self.held_up:
            return Blame.HELD_UP
        return Blame.PEER if has_lost_peer(self.failure) else Blame.OWN


def has_lost_peer(failure: str) -> bool:
    """Return whether a worker has failed because it lost another one, or waited for it."""
    return blames_peer(failure) or "timed out" in failure.lower()


def merge(node: str, phase: Phase, answers: list[WorkerAnswer], workers: int) -> Record:
    """Return the node's record from its workers' answers; there is at least one.

    The metrics come from the slowest worker; the failure is the most informative one, with the
    local rank if there are several ``workers``.
    """
    failed = sorted((a for a in answers if a.failure), key=lambda a: (a.blame, a.local_rank))
    failure = ""
    if failed:
        first = failed[0]
        where = (
            f"local rank {first.local_rank}: " if workers > 1 and phase is not Phase.FACTS else ""
        )
        failure = where + first.failure
    metrics = {}
    for name in METRICS:
        if values := [answer.metrics[name] for answer in answers if name in answer.metrics]:
            metrics[name] = (max if name in LOWER_IS_BETTER else min)(values)
    facts = {name: value for answer in answers for name, value in answer.facts.items()}
    return Record(node, phase, failure=failure, metrics=metrics, facts=facts)
