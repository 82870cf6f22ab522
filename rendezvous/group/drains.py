"""Makes all ranks save one snapshot before nodes leave or the world grows.

The nodes of a round get a drain order when a node gives notice of its preemption, or when a larger
world is planned. When each has reported that its workers saved their shards of the same step, the
nodes that gave notice can leave, or the round is stopped for the larger world. Each plan has its
own time limit, after which the change happens without permission, so it never blocks a round.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ...events.master import NodePreemptionNoticed, ScaleUpCancelled, ScaleUpPrepared
from ..protocol.bounds import COUNT_MAX
from ..protocol.drain_messages import CancelDrain, Drain, Drained, MayLeave, Notice
from .outbox import Outbox
from .phases import Running
from .roster import Node, NodePhase, sizes_of
from .rounds import Rounds
from .state import JobState

_OTHER_LINK = -1
"""Not a stream of this master."""


class _Preemption(NamedTuple):
    reason: str
    until: float


class Drains:
    """Planned changes of the world of the running round."""

    def __init__(self, state: JobState, out: Outbox, rounds: Rounds) -> None:
        self._state, self._roster, self._out = state, state.roster, out
        self._rounds = rounds
        self._preempted: dict[str, _Preemption] = {}
        self._world: tuple[int, str] | None = None
        """Number and master of the round that the following state belongs to."""
        self._number = 0
        """Number of the current or next order of the round; incremented after each canceled
        order."""
        self._steps: dict[str, int] = {}
        """Step whose state the workers have saved, by node."""
        self._told: dict[str, tuple[int | None, Drain | None]] = {}
        """Stream and order that were sent last, by node; None if the order was canceled."""
        self._dismissed: dict[str, int | None] = {}
        """Stream on which a node received permission to leave, by node."""

    # --- events ------------------------------------------------------------------------------

    def noticed(self, node: Node, notice: Notice) -> None:
        """Record that a node is being preempted."""
        node_id = node.spec.node_id
        if node_id not in self._preempted:
            self._out.note(NodePreemptionNoticed(node_id, notice.reason, notice.seconds))
        until = self._state.now + notice.seconds
        self._preempted[node_id] = _Preemption(notice.reason, until)

    def drained(self, node: Node, message: Drained) -> None:
        """Record that the workers of a node have saved their shards."""
        is_current = message.round == self._state.round == node.round
        if is_current and message.is_fixed and isinstance(self._state.phase, Running):
            self._state.phase.is_fixed = True
        elif is_current and message.number == self._number:  # else the order was canceled
            self._steps[node.spec.node_id] = message.step

    def taken_over(self) -> None:
        """Cancel the larger world that an earlier master planned for a round that continues."""
        self._begin_round()
        # Must differ from the order numbers of any other master.
        self._number = 1 + zlib.crc32(self._state.master_id.encode()) % (COUNT_MAX // 2)
        members = self._roster.in_phase(NodePhase.RUNNING)
        self._told = {node.spec.node_id: (_OTHER_LINK, None) for node in members}

    def forget(self, node_id: str) -> None:
        """Forget a removed node."""
        self._preempted.pop(node_id, None)

    def rescale(self, running: Running) -> None:
        """Prepare a larger world that is due; all ranks save first if they are given time."""
        running.rescale_at = math.inf
        if self._rounds.growth() <= 0:
            return
        reason = self._rounds.growth_reason()
        limit_s = self._state.settings.drain_timeout_s
        if not limit_s:
            self._rounds.stop_round(reason, counted=False)
            return
        running.grows_until = self._state.now + limit_s
        self._out.note(ScaleUpPrepared(reason, limit_s))

    def advance(self, running: Running) -> None:
        """Send pending orders and permissions; stop the round for a larger world that is ready."""
        self._begin_round()
        is_growing = running.grows_until < math.inf
        if not (self._preempted or is_growing or self._told):
            return
        nodes = {node.spec.node_id: node for node in self._roster.in_phase(NodePhase.RUNNING)}
        leaving = self._leaving(nodes.values())
        if is_growing:
            self._advance_growth(running, nodes, is_anyone_leaving=bool(leaving))
            if self._state.phase is not running:
                return
        self._send_order(self._order(running, nodes, leaving), nodes)
        if (step := self._saved(nodes)) is None:
            return
        for node in leaving:
            name = node.spec.node_id
            if self._dismissed.get(name) != node.link:
                self._dismissed[name] = node.link
                self._out.send(node, MayLeave(self._state.round, step))

    # --- helpers -----------------------------------------------------------------------------

    def _begin_round(self) -> None:
        world = self._state.round, self._state.formed_by
        if world != self._world:
            self._world, self._number = world, 0
            self._steps, self._told, self._dismissed = {}, {}, {}

    def _leaving(self, nodes: Iterable[Node]) -> list[Node]:
        return [node for node in nodes if node.spec.node_id in self._preempted]

    def _saved(self, nodes: Mapping[str, Node]) -> int | None:
        """Return the step that all nodes have saved; None if they have not yet.

        -1 if the workers keep no state, or have saved it themselves.
        """
        steps = {self._steps.get(name) for name in nodes}
        return steps.pop() if len(steps) == 1 else None

    def _advance_growth(
        self, running: Running, nodes: Mapping[str, Node], *, is_anyone_leaving: bool
    ) -> None:
        """Stop the round for a larger one when all ranks have saved, or their time has expired."""
        if self._rounds.growth() <= 0:
            running.grows_until = math.inf
            self._out.note(ScaleUpCancelled())
            if not is_anyone_leaving:
                self._number += 1
                self._steps.clear()
            return
        reason, step = self._rounds.growth_reason(), self._saved(nodes)
        if self._state.now >= running.grows_until:
            limit_s = self._state.settings.drain_timeout_s
            reason += f", without a snapshot: not all ranks saved it within {limit_s:g} s"
        elif is_anyone_leaving:
            return  # the round after it is the larger one
        elif any(self._steps.get(name) == -1 for name in nodes):
            pass  # workers that keep no state
        elif step is not None:
            reason += f", all ranks saved the snapshot of step {step}"
        else:
            return
        self._rounds.stop_round(reason, counted=False)

    def _order(
        self, running: Running, nodes: Mapping[str, Node], leaving: Sequence[Node]
    ) -> Drain | None:
        is_whole = grows = False
        if leaving:
            first = min((node.spec.node_id for node in leaving), key=self._leaves_at)
            why, until = self._preempted[first]
            reason = f"node {first} is being preempted ({why})"
            is_whole, resizes = len(leaving) == len(nodes), self._resizes(leaving)
        elif running.grows_until < math.inf:
            reason, until = self._rounds.growth_reason(), running.grows_until
            resizes = grows = True
        else:
            return None
        left_s = max(0.0, until - self._state.now)
        return Drain(self._state.round, reason, left_s, is_whole, resizes, grows, self._number)

    def _leaves_at(self, node_id: str) -> float:
        return self._preempted[node_id].until

    def _send_order(self, order: Drain | None, nodes: Mapping[str, Node]) -> None:
        """Send an order to the nodes that have not received it on their stream.

        Without an order, the nodes that save for a larger world are notified that it is canceled.
        """
        kind = None if order is None else replace(order, reason="", seconds=0.0)
        message = order or CancelDrain(self._state.round, self._number)
        for name, node in nodes.items():
            told = self._told.get(name)
            may_save = told is not None and (told[1] is None or told[1].grows)
            if told != (node.link, kind) and (kind is not None or may_save):
                self._told[name] = (node.link, kind)
                self._out.send(node, message)

    def _resizes(self, leaving: Sequence[Node]) -> bool:
        """Return whether the world will have a different size without the nodes that leave."""
        state, job = self._state, self._state.job
        assert job is not None
        size = state.usable(state.sizes - sizes_of(leaving) + self._rounds.gate.may_join())
        if not size:  # the others wait for replacements
            return job.min_nodes != job.max_nodes
        workers = {node.spec.local_world_size for node in (*leaving, *self._roster.ready_nodes())}
        return size != state.world_nodes or len(workers) > 1
