"""Which nodes were to blame, how often, and which are excluded from the job. Pure.

An excluded node may not rejoin the job, under any incarnation. The failures of a node are told
to no other master; the exclusions are, with the places of a round.
"""

from collections import defaultdict, deque
from collections.abc import Iterable

_REMEMBERED = 1000
"""Failures of one node; no limit that makes sense is higher."""


class Ledger:
    """The record of the nodes of one job, by identity."""

    def __init__(self) -> None:
        self._failures: defaultdict[str, deque[float]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )
        self._excluded: dict[str, str] = {}

    def blame(self, node_id: str, window_s: float, now: float) -> int:
        """A node was the root cause; return how often it was so within the window.

        Args:
            node_id: the node.
            window_s: how far back failures count, in seconds; 0: all of them.
            now: the time.
        """
        times = self._failures[node_id]
        times.append(now)
        while window_s and now - times[0] >= window_s:
            times.popleft()
        return len(times)

    def exclude(self, node_id: str, why: str) -> None:
        """Rule a node out, for a reason in words; the first reason stays."""
        self._excluded.setdefault(node_id, why)

    def learn(self, excluded: Iterable[str]) -> list[str]:
        """Take over what an earlier master has ruled out; return what is new."""
        new = [node_id for node_id in excluded if node_id not in self._excluded]
        for node_id in new:
            self._excluded[node_id] = "an earlier master of this job excluded it"
        return new

    @property
    def excluded(self) -> tuple[str, ...]:
        """The excluded nodes, in the order of their exclusion."""
        return tuple(self._excluded)

    def sentence(self, node_id: str) -> str | None:
        """Return what an excluded node is told; None for a node that is not excluded."""
        why = self._excluded.get(node_id)
        if why is None:
            return None
        return f"the node {node_id!r} is excluded from this job and may not rejoin it: {why}."
