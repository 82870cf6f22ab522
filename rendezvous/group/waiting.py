"""Waiting for nodes: time limits, and the messages to waiting nodes."""

from itertools import islice

from msgspec.structs import replace

from ..protocol.messages import JobSpec, Waiting
from .ending import Ending
from .outbox import Outbox
from .phases import Gathering, Running, Stopping
from .roster import Node, NodePhase, Sizes
from .state import JobState
from .world import in_units

_MISSING_NAMED = 8
_ANNOUNCE_EVERY_S = 1.0
_REMIND_EVERY_S = 60.0
_ANNOUNCED_PER_S = 1000
"""Limits the cost of ``announce`` while thousands of nodes join."""


class WaitingNodes:
    """The wait before a world is formed. All times are in seconds of the group's clock."""

    def __init__(self, state: JobState, out: Outbox) -> None:
        self._state = state
        self._settings = state.settings
        self._out = out
        self.since: float | None = None
        """When the current wait started; None while a round is running or before the first node."""
        self.announce_at: float | None = None
        self.not_before = 0.0
        """Earliest time of the next round, because of ``--restart-backoff``."""
        self._last_arrival = 0.0
        self._newcomers: list[Node] = []
        """Nodes that have become ready and have not yet received a ``Waiting`` message."""

    @property
    def opens_at(self) -> float:
        """Earliest time of the next round."""
        return max(self.not_before, self._state.starts_from)

    # --- time limits --------------------------------------------------------------------------

    def open(self, now: float) -> None:
        """Start to wait."""
        self.since = now
        self.announce_at = now + _ANNOUNCE_EVERY_S

    def close(self) -> None:
        """Stop waiting: a world has been formed, or the job has ended."""
        self.since = self.announce_at = None

    def arrived(self, now: float) -> None:
        """Record a new node; the others are notified soon, but not of each one."""
        self._last_arrival = now
        if self.since is None:
            return
        interval = max(_ANNOUNCE_EVERY_S, len(self._state.roster) / _ANNOUNCED_PER_S)
        self.announce_at = min(self.announce_at or now + interval, now + interval)

    def join_deadline(self) -> float | None:
        """Return when the wait is given up."""
        return None if self.since is None else self.since + self._settings.join_timeout_s

    def overdue(self, now: float) -> bool:
        """Return whether the wait has exceeded its limit."""
        deadline = self.join_deadline()
        return deadline is not None and deadline <= now

    def last_call(self) -> float:
        """Return until when the first world waits for more nodes than its minimum."""
        return self._last_arrival + self._settings.last_call_timeout_s

    # --- messages -----------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Add a ready node, which receives ``Waiting`` when its content is known."""
        self._newcomers.append(node)

    def forget_newcomers(self) -> None:
        """Forget new ready nodes, which have received another message."""
        self._newcomers = []

    def tell_newcomers(self, now: float) -> None:
        """Send ``Waiting`` to the nodes that have become ready and still wait."""
        nodes, self._newcomers = self._newcomers, []
        if isinstance(self._state.phase, Ending):
            return
        for node in nodes:
            # A stopped node receives nothing while it waits for the others. If it were told that it
            # is a spare, it would forget its part in the round and its failures, which a later
            # master needs.
            is_stopping = isinstance(self._state.phase, Stopping)
            is_member = is_stopping and self._state.was_member(node)
            if node.phase is NodePhase.READY and not is_member:
                waiting = self.waiting(now)
                if waiting.spare:  # it drops its snapshots in memory
                    node.offer = replace(node.offer, snapshots=None)
                self._out.send(node, waiting)

    def announce(self, now: float) -> None:
        """Notify all waiting nodes of the missing ones; later messages are reminders."""
        self.announce_at = now + _REMIND_EVERY_S
        waiting = self.waiting(now)
        for node in self._state.roster.in_phase(NodePhase.READY):
            self._out.send(node, waiting)

    def waiting(self, now: float) -> Waiting:
        """Return the message for a waiting node."""
        job, phase, deadline = self._state.job, self._state.phase, self.join_deadline()
        assert job is not None
        waiting = Waiting(
            joined=len(self._state.roster),
            min_nodes=job.min_nodes,
            max_nodes=job.max_nodes,
            missing=self._missing(),
            timeout_s=max(0.0, deadline - now) if deadline is not None else 0.0,
            spare=isinstance(phase, Running | Stopping),
        )
        backoff_s = self.opens_at - now if isinstance(phase, Gathering) else 0.0
        if backoff_s > 0 and self._state.usable(self._state.roster.ready_sizes):
            return replace(waiting, backoff_s=backoff_s)
        return waiting

    def not_enough(self) -> str:
        """Return a message on why the wait was given up."""
        job, roster = self._state.job, self._state.roster
        assert job is not None
        missing = ", ".join(self._missing())
        return (
            f"{len(roster)} of at least {job.min_nodes} nodes joined within "
            f"{self._settings.join_timeout_s:g} s" + (f"; missing: {missing}" if missing else "")
        )

    def _missing(self) -> tuple[str, ...]:
        """Return the missing nodes, if known: former members, or ranks."""
        job, roster = self._state.job, self._state.roster
        assert job is not None
        gone = (name for name in self._state.former_ranks if roster.get(name) is None)
        names = list(islice(gone, _MISSING_NAMED)) or self._missing_units(job, roster.ready_sizes)
        if not names and roster.anyone_wants_a_rank():
            names = [
                f"--node-rank {rank}"
                for rank in range(min(job.max_nodes, _MISSING_NAMED * 8))
                if roster.by_wanted_rank(rank) is None
            ]
        return tuple(names[:_MISSING_NAMED])

    def _missing_units(self, job: JobSpec, ready: Sizes) -> list[str]:
        count = ready.total() if job.node_unit > 1 else 0
        if count < job.min_nodes or self._state.usable(ready):
            return []
        bare = ready[""]
        unlabelled = f", {bare} without a segment" if bare else ""
        return [
            f"whole units of {job.node_unit} nodes of one segment ({in_units(ready, job.node_unit)}"
            f" of {count} nodes are in one{unlabelled})"
        ]
