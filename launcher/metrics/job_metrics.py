"""Metrics of a job, from its master: the same number for 10,000 nodes as for two."""

import time
from collections.abc import Callable
from typing import Final

from ...rendezvous.group.group import Group
from ...rendezvous.group.phases import Running
from ...rendezvous.group.roster import NodePhase
from ...rendezvous.master.master import Master
from ...rendezvous.protocol.failure import FailureKind
from . import catalogue as c
from .catalogue import Samples

STATES: Final = {
    "training": "in the world of a running round",
    "spare": "connected, and the running round has as many nodes as it can use",
    "waiting": "connected, and no round runs (nodes are awaited, checked or stopped), or a running"
    " one can grow",
    "missing": "fewer nodes are connected than the maximum of `--nnodes`",
    "excluded": "removed by the failure policy or by the checks",
}
"""The states of nodes, with their meaning for the reference."""
CAUSES: Final = tuple(kind.name.lower() for kind in FailureKind)
"""Causes of restarts. Each has a sample from the start, because Prometheus does not see the growth
of a counter whose first sample is above 0."""

_NAMES_SHOWN: Final = 20
"""Maximum number of names of other work that get series."""


def nodes_by_state(group: Group) -> dict[str, int]:
    """Return the number of nodes in each state. Its cost depends only on the number of segments."""
    roster, state = group.roster, group.state
    ready, here = roster.ready_attached(), len(roster) - roster.detached
    are_spare = isinstance(state.phase, Running) and (
        state.usable(state.sizes + roster.ready_sizes) <= state.world_nodes
    )
    return {
        "training": sum(map(roster.count, (NodePhase.RUNNING, NodePhase.DONE))),
        "spare": ready if are_spare else 0,
        "waiting": (0 if are_spare else ready)
        + sum(map(roster.count, (NodePhase.STOPPING, NodePhase.STALE))),
        "missing": max(0, state.job.max_nodes - here) if state.job is not None else 0,
        "excluded": len(state.aftermath.ledger.excluded),
    }


class JobMetrics:
    """Follows the master of this process, over several terms of leadership."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._master: Master | None = None
        self._nodes = dict.fromkeys(STATES, 0)
        self._seconds = dict.fromkeys(STATES, 0.0)
        self._since = clock()
        self._round = -1
        self._restarts = dict.fromkeys(CAUSES, 0)

    @property
    def master(self) -> Master | None:
        """The master of this process, while it leads."""
        return None if self._master is None or self._master.is_closed else self._master

    def changed(self, master: Master) -> None:
        """Update the time per node state, because the group may have changed."""
        now, group = self._clock(), master.group
        passed_s, self._since = now - self._since, now
        if master is not self._master:
            self._master, self._round = master, group.round
            passed_s = 0.0  # until now another process led, or none
        for state, nodes in self._nodes.items():
            self._seconds[state] += nodes * passed_s
        self._nodes = nodes_by_state(group)
        if group.round != self._round:
            self._round = group.round
            self._count_restart(group)

    def _count_restart(self, group: Group) -> None:
        member = next(iter(group.roster.in_phase(NodePhase.RUNNING)), None)
        assignment = member.assignment if member is not None else None
        if assignment is not None and assignment.cause is not None:
            self._restarts[assignment.cause.kind.name.lower()] += 1

    def now(self) -> Samples:
        """Return the current samples; empty if this process has no leading master."""
        samples = Samples()
        if (master := self.master) is None:
            return samples
        self.changed(master)
        for state, nodes in self._nodes.items():
            samples.put(c.NODES, nodes, state)
            samples.put(c.NODE_SECONDS, self._seconds[state], state)
        for cause, count in self._restarts.items():
            samples.put(c.RESTARTS, count, cause)
        samples.put(c.ROUND, self._round if self._round >= 0 else None)
        for work in master.progress()[-_NAMES_SHOWN:]:
            samples.put(c.WORK_ITEMS, work.size, work.name)
            samples.put(c.WORK_DONE, work.done, work.name)
        return samples
