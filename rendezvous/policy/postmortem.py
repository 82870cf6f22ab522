"""Why a round ended: its failures, the root cause, and whether a restart counts."""

from ..protocol.claim import Progress
from ..protocol.failure import Evidence, Failure, FailureKind, evidence, root_cause

_FAILURES_KEPT = 256
"""Maximum number of failures of one round that are kept to find the root cause."""

_Key = tuple[FailureKind, int, int, int, int]


class Postmortem:
    """The known causes of the end of the current round."""

    def __init__(self) -> None:
        self._failures: dict[_Key, Failure] = {}
        self._positions: dict[_Key, float] = {}
        """Their order, as far as the master knows it."""
        self._collateral: list[_Key] = []
        """Failures that are dropped first if there are too many."""
        self._suspected: dict[str, int] = {}
        """Number of known failures when a node's stream broke, by identity."""
        self.count = 0
        """Number of failures, including dropped ones."""
        self.counted = False
        """Whether the end of the round counts as a restart."""
        self.reason = ""
        """Why the round ended, as text; empty while it is running."""
        self.cause: Failure | None = None
        """Root cause, after the round has ended; None if it ended for another reason."""
        self.preempted: Failure | None = None
        """The node whose departure ended the round."""
        self.progress: dict[str, Progress] = {}
        """Progress of the nodes that have reported it, by identity."""

    def suspect(self, node_id: str) -> None:
        """Record that a node's stream broke: if the node is lost, this is the time."""
        self._suspected.setdefault(node_id, self.count)

    def acquit(self, node_id: str) -> None:
        """Record that the node has reconnected."""
        self._suspected.pop(node_id, None)

    def remember(self, failure: Failure, node_id: str = "") -> None:
        """Record a failure, unless it is known; ``node_id`` is the lost node, if it is a loss."""
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
            # The root cause may be the last to arrive.
            del self._failures[self._collateral.pop()]
        self._failures[key] = failure
        self._positions[key] = position
        if is_collateral:
            self._collateral.append(key)

    @property
    def foremost(self) -> Failure | None:
        """The root cause, as far as known."""
        return root_cause(self._in_order())

    @property
    def stuck(self) -> Failure | None:
        """The first worker that cannot be killed, which makes another round impossible."""
        kinds = (f for f in self._failures.values() if f.kind is FailureKind.STUCK)
        return next(kinds, None)

    def begin(self, reason: str, *, counted: bool, preempted: Failure | None = None) -> None:
        """Record that the round is being stopped."""
        self.reason, self.counted, self.preempted = reason, counted, preempted

    def conclude(self) -> None:
        """Determine the root cause, after all of the round's workers are dead."""
        stuck = self.stuck
        self.cause = self.foremost if self.counted else stuck
        if self.cause is not None:
            self.reason = self.cause.summary()
            if stuck is not None and stuck is not self.cause:
                self.reason += f"; then {stuck.summary()}"

    def _in_order(self) -> list[Failure]:
        keys = sorted(self._failures, key=self._positions.__getitem__)
        return [self._failures[key] for key in keys]

    def blame_departure(self) -> None:
        """Make the departure of a node the root cause, because the policy responds to it."""
        if self.preempted is not None:
            self.remember(self.preempted)
            self.cause = self.preempted

    def failures(self, limit: int) -> tuple[Failure, ...]:
        """Return at most ``limit`` of the failures, the root cause first."""
        ordered = sorted(self._failures.values(), key=lambda failure: failure is not self.cause)
        return tuple(ordered[:limit])
