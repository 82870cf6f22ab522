"""Why a round ended: the failures of its workers, the root cause, and whether it counts. Pure."""

from ..protocol.failure import Evidence, Failure, FailureKind, evidence, root_cause
from ..protocol.messages import Progress

_FAILURES_KEPT = 256
"""Failures of one round that are kept to find the root cause among them."""

_Key = tuple[FailureKind, int, int, int, int]


class Postmortem:
    """What is known of the end of the present round."""

    def __init__(self) -> None:
        self._failures: dict[_Key, Failure] = {}
        self._positions: dict[_Key, float] = {}
        """In which order they happened, as far as the master can tell."""
        self._collateral: list[_Key] = []
        """Those that make room when there are too many."""
        self._suspected: dict[str, int] = {}
        """By identity, how many failures were known when a node's stream broke."""
        self.count = 0
        """How many failures there were, also those that were not kept."""
        self.counted = False
        """The end of the round costs a restart."""
        self.reason = ""
        """Why the round ended, in words; empty while it runs."""
        self.cause: Failure | None = None
        """The root cause, once the round is over; None when it ended for another reason."""
        self.preempted: Failure | None = None
        """The node whose departure ended the round."""
        self.progress: dict[str, Progress] = {}
        """By identity, how far the nodes have come that have said it."""

    def suspect(self, node_id: str) -> None:
        """The stream of a node broke: should it be lost, this is when."""
        self._suspected.setdefault(node_id, self.count)

    def acquit(self, node_id: str) -> None:
        """The node is back."""
        self._suspected.pop(node_id, None)

    def remember(self, failure: Failure, node_id: str = "") -> None:
        """Take in a failure; one that is known already changes nothing.

        Args:
            failure: what failed.
            node_id: the node that is lost, where that is the failure.
        """
        key = (
            failure.kind,
            failure.node_rank,
            failure.rank,
            failure.local_rank,
            failure.pid,
        )
        if key in self._failures:
            return
        position = self._suspected.get(node_id, self.count) - (0.5 if node_id else 0.0)
        self.count += 1
        is_collateral = evidence(failure) is Evidence.COLLATERAL
        if len(self._failures) >= _FAILURES_KEPT:
            if is_collateral or not self._collateral:
                return
            # The one from which all others follow may be heard of last.
            del self._failures[self._collateral.pop()]
        self._failures[key] = failure
        self._positions[key] = position
        if is_collateral:
            self._collateral.append(key)

    @property
    def foremost(self) -> Failure | None:
        """What would be the root cause, as far as is known by now."""
        return root_cause(self._in_order())

    @property
    def stuck(self) -> Failure | None:
        """The first worker that does not die: no other round can be formed over it."""
        kinds = (f for f in self._failures.values() if f.kind is FailureKind.STUCK)
        return next(kinds, None)

    def begin(self, reason: str, *, counted: bool, preempted: Failure | None = None) -> None:
        """The round is being stopped."""
        self.reason, self.counted, self.preempted = reason, counted, preempted

    def conclude(self) -> None:
        """All of the round's workers are dead: name the root cause."""
        stuck = self.stuck
        self.cause = self.foremost if self.counted else stuck
        if self.cause is not None:
            self.reason = self.cause.summary()
            if stuck is not None and stuck is not self.cause:
                self.reason += f"; then {stuck.summary()}"

    def _in_order(self) -> list[Failure]:
        """Return the failures in the order in which they happened, as far as that is known."""
        keys = sorted(self._failures, key=self._positions.__getitem__)
        return [self._failures[key] for key in keys]

    def blame_departure(self) -> None:
        """Make the departure of a node the root cause: the policy wants an answer to it."""
        if self.preempted is not None:
            self.remember(self.preempted)
            self.cause = self.preempted

    def failures(self, limit: int) -> tuple[Failure, ...]:
        """Return at most ``limit`` of the failures, the root cause first."""
        ordered = sorted(self._failures.values(), key=lambda failure: failure is not self.cause)
        return tuple(ordered[:limit])
