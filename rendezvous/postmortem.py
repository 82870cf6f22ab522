"""Why a round ended: the failures of its workers, the root cause, and whether it counts. Pure."""

from .failure import Failure, FailureKind, root_cause

_FAILURES_KEPT = 256
"""Failures of one round that are kept to find the root cause among them."""

_Key = tuple[FailureKind, int, int, int, int]


class Postmortem:
    """What is known of the end of the present round."""

    def __init__(self) -> None:
        self._failures: dict[_Key, Failure] = {}
        self.count = 0
        """How many failures there were, also those that were not kept."""
        self.counted = False
        """The end of the round costs a restart."""
        self.reason = ""
        """Why the round ended, in words; empty while it runs."""
        self.cause: Failure | None = None
        """The root cause, once the round is over; None when it ended for another reason."""

    def remember(self, failure: Failure) -> None:
        """Take in a failure; one that is known already changes nothing."""
        key = (
            failure.kind,
            failure.node_rank,
            failure.rank,
            failure.local_rank,
            failure.pid,
        )
        if key not in self._failures:
            self.count += 1
            if len(self._failures) < _FAILURES_KEPT:
                self._failures[key] = failure

    @property
    def first(self) -> Failure | None:
        """The first failure that the master heard of."""
        return next(iter(self._failures.values()), None)

    @property
    def stuck(self) -> Failure | None:
        """The first worker that does not die: no other round can be formed over it."""
        kinds = (f for f in self._failures.values() if f.kind is FailureKind.STUCK)
        return next(kinds, None)

    def begin(self, reason: str, *, counted: bool) -> None:
        """The round is being stopped."""
        self.reason, self.counted = reason, counted

    def conclude(self) -> None:
        """All of the round's workers are dead: name the root cause."""
        stuck = self.stuck
        self.cause = root_cause(list(self._failures.values())) if self.counted else stuck
        if self.cause is not None:
            self.reason = self.cause.summary()
            if stuck is not None and stuck is not self.cause:
                self.reason += f"; then {stuck.summary()}"

    def failures(self, limit: int) -> tuple[Failure, ...]:
        """Return at most ``limit`` of the failures, the root cause first."""
        ordered = sorted(self._failures.values(), key=lambda failure: failure is not self.cause)
        return tuple(ordered[:limit])
