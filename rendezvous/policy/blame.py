"""Which nodes were the root cause, how often, and which are excluded.

An excluded node cannot rejoin the job, under any incarnation. The assignments of a round carry the
part that a later master needs.
"""

from collections import deque
from collections.abc import Iterable

from ..protocol.claim import NodeFailures

_REMEMBERED = 1000
"""Maximum number of failures per node; higher limits make no sense."""

_SENT_MAX = 32
"""Number of nodes whose failures are sent, in possibly thousands of assignments."""


class Ledger:
    """The record of the nodes of one job, by identity."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[float]] = {}
        """Times of each node's failures; the node that failed last is at the end."""
        self._excluded: dict[str, str] = {}

    def blame(self, node_id: str, window_s: float, now: float) -> int:
        """Count a root cause; return the node's count within ``window_s`` seconds (0 for all)."""
        times = self._failures.pop(node_id, deque[float](maxlen=_REMEMBERED))
        self._failures[node_id] = times
        times.append(now)
        while window_s and now - times[0] >= window_s:
            times.popleft()
        return len(times)

    def failures(self, limit: int, window_s: float, now: float) -> tuple[NodeFailures, ...]:
        """Return which nodes were the root cause, and how long ago, for a later master.

        Args:
            limit: number of failures that exclude a node, and the maximum that is sent per node; 0
                for none.
            window_s: how far back failures count, in seconds; 0 for all of them.
            now: the time.
        """
        failures: list[NodeFailures] = []
        for node_id, times in reversed(self._failures.items()) if limit else ():
            counted = [time for time in times if not window_s or now - time < window_s]
            if counted and node_id not in self._excluded and len(failures) < _SENT_MAX:
                failures.append(
                    NodeFailures(node_id, tuple(int(now - time) for time in counted[-limit:]))
                )
        return tuple(failures)

    def learn_failures(self, failures: Iterable[NodeFailures], since_s: int, now: float) -> None:
        """Take over higher counts from an earlier master's ``failures`` of ``since_s`` ago."""
        for node in reversed(tuple(failures)):
            if len(node.ages_s) > len(self._failures.get(node.node_id, ())):
                times = [now - since_s - age for age in node.ages_s]
                self._failures[node.node_id] = deque(times, maxlen=_REMEMBERED)

    def exclude(self, node_id: str, why: str) -> None:
        """Exclude a node, with a reason as text; the first reason is kept."""
        self._excluded.setdefault(node_id, why)

    def learn(self, excluded: Iterable[str]) -> list[str]:
        """Take over the exclusions of an earlier master; return the new ones."""
        new = [node_id for node_id in excluded if node_id not in self._excluded]
        for node_id in new:
            self._excluded[node_id] = "excluded by an earlier master of this job"
        return new

    @property
    def excluded(self) -> tuple[str, ...]:
        """The excluded nodes, in the order of their exclusion."""
        return tuple(self._excluded)

    def sentence(self, node_id: str) -> str | None:
        """Return the message for an excluded node; None for a node that is not excluded."""
        why = self._excluded.get(node_id)
        if why is None:
            return None
        return f"node {node_id!r} is excluded from this job and may not rejoin it: {why}."
