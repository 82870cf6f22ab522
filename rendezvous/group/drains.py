"""Has all ranks save a consistent snapshot before nodes leave or the world grows. Pure.

``policy/drain`` records which node was sent which order; here it is applied to the running round.
"""

import math
import zlib

from ...events.master import NodePreemptionNoticed, ScaleUpCancelled, ScaleUpPrepared
from ..policy.drain import Draining, World
from ..protocol.bounded import COUNT_MAX
from ..protocol.drain_messages import CancelDrain, Drain, Drained, MayLeave, Notice
from ..protocol.tuned import Retune
from .outbox import Outbox
from .phases import Running
from .roster import Node, NodePhase, sizes_of
from .rounds import Rounds
from .state import JobState


class Drains:
    """The planned changes of the world of the round that runs."""

    def __init__(self, state: JobState, out: Outbox, rounds: Rounds) -> None:
        """Begin without any.

        Args:
            state: what is known of the job.
            out: where messages go.
            rounds: ends the round.
        """
        self._state, self._roster, self._out = state, state.roster, out
        self._rounds = rounds
        self._draining = Draining()

    # --- what happens ------------------------------------------------------------------------

    def noticed(self, node: Node, notice: Notice) -> None:
        """Record that a node is being preempted."""
        node_id, until = node.spec.node_id, self._state.now + notice.seconds
        if self._draining.notice(node_id, notice.reason, until):
            self._out.note(NodePreemptionNoticed(node_id, notice.reason, notice.seconds))

    def drained(self, node: Node, message: Drained) -> None:
        """Record that the workers of a node have saved their shards."""
        number = message.number if node.spec.drains_to_grow else None
        if message.round == self._state.round == node.round:
            self._draining.left(self._world, node.spec.node_id, message.step, number)

    def retuned(self, node: Node, order: Retune) -> None:
        """Restart all workers with the values that the node with rank 0 orders.

        An order that comes while the world changes, or may, is ignored: the node repeats it.
        """
        running = self._state.phase
        if not isinstance(running, Running) or node.rank != 0 or order.round != self._state.round:
            return
        trials = self._state.aftermath.trials
        members = self._roster.in_phase(NodePhase.RUNNING)
        names = [one.spec.node_id for one in members if one.link is not None]
        is_whole = len(names) == self._state.world_nodes
        if trials.are(order):
            trials.learn(order.values, order.trial)
        elif is_whole and not running.is_growing and not self._draining.is_any(names):
            self._rounds.stop_round(trials.order(order), counted=False)

    def taken_over(self) -> None:
        """A round of an earlier master runs on: a larger world that it has planned is cancelled."""
        members = self._roster.in_phase(NodePhase.RUNNING)
        names = [node.spec.node_id for node in members if node.spec.drains_to_grow]
        number = 1 + zlib.crc32(self._state.master_id.encode()) % (COUNT_MAX // 2)
        self._draining.take_over(self._world, names, number)

    def forget(self, node_id: str) -> None:
        """Forget a removed node."""
        self._draining.forget(node_id)

    def rescale(self, running: Running) -> None:
        """It is time for a larger world: have all ranks save first, where they can.

        Nodes of an earlier version of ft-run cannot: then the round is stopped at once.
        """
        running.rescale_at = math.inf
        if self._rounds.growth() <= 0:
            return
        reason = self._rounds.growth_reason()
        limit_s = self._state.settings.drain_timeout_s
        members = self._roster.in_phase(NodePhase.RUNNING)
        if not limit_s or not all(node.spec.drains_to_grow for node in members):
            self._rounds.stop_round(reason, counted=False)
            return
        running.grows_until = self._state.now + limit_s
        self._draining.plan_growth(self._world, reason, running.grows_until)
        self._out.note(ScaleUpPrepared(reason, limit_s))

    def advance(self, running: Running) -> None:
        """Tell the nodes what they have to know, and do what they have made possible."""
        if self._draining.is_idle:
            return
        nodes = {node.spec.node_id: node for node in self._roster.in_phase(NodePhase.RUNNING)}
        if running.grows_until < math.inf:
            self._advance_growth(running, nodes)
            if self._state.phase is not running:
                return
        self._send_orders(nodes)
        links = {name: node.link for name, node in nodes.items()}
        step, may_leave = self._draining.dismissals(links)
        for name in may_leave:
            self._out.send(nodes[name], MayLeave(self._state.round, step))

    # --- parts of it -------------------------------------------------------------------------

    @property
    def _world(self) -> World:
        return (self._state.round, self._state.formed_by)

    def _advance_growth(self, running: Running, nodes: dict[str, Node]) -> None:
        """Stop the round for a larger one when all ranks have saved, or their time is over."""
        if self._rounds.growth() <= 0:
            running.grows_until = math.inf
            self._draining.cancel_growth(nodes)
            self._out.note(ScaleUpCancelled())
            return
        reason, step = self._rounds.growth_reason(), self._draining.saved(nodes)
        if self._state.now >= running.grows_until:
            limit_s = self._state.settings.drain_timeout_s
            why = f"{reason}, without a snapshot: not all ranks saved it within {limit_s:g} s"
            self._rounds.stop_round(why, counted=False)
        elif self._draining.is_any(nodes):
            return  # a node leaves first; the round after it is the larger one
        elif self._draining.saves_none(nodes):
            self._rounds.stop_round(reason, counted=False)
        elif step is not None:
            why = f"{reason}, all ranks saved the snapshot of step {step}"
            self._rounds.stop_round(why, counted=False)

    def _send_orders(self, nodes: dict[str, Node]) -> None:
        resizes = self._draining.is_any(nodes) and self._resizes(nodes)
        order = self._draining.order(self._world, nodes, resizes=resizes)
        links = {name: node.link for name, node in nodes.items()}
        untold = self._draining.untold(order, links)
        number = self._state.round
        if order is None:
            for name in untold:
                self._out.send(nodes[name], CancelDrain(number, self._draining.number))
            return
        left_s = max(0.0, order.until - self._state.now)
        drain = Drain(
            number,
            order.reason,
            left_s,
            order.is_whole,
            order.resizes,
            order.grows,
            order.number,
        )
        for name in untold:
            self._out.send(nodes[name], drain)

    def _resizes(self, nodes: dict[str, Node]) -> bool:
        """Return whether the world will have another size without the nodes that leave."""
        state, job = self._state, self._state.job
        assert job is not None
        going = [nodes[name] for name in self._draining.going(nodes)]
        size = state.usable(state.sizes - sizes_of(going) + self._rounds.could_join())
        if not size:  # the others wait for replacements
            return job.min_nodes != job.max_nodes
        workers = {node.spec.local_world_size for node in (*going, *self._roster.ready_nodes())}
        return size != state.world_nodes or len(workers) > 1
