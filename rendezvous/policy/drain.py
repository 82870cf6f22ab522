"""Before nodes leave, all ranks save a consistent snapshot. Pure.

A node that is being preempted gives notice. The nodes of its round are ordered to drain. When each
has reported that its workers have saved their shards of the state of one step, the same for all,
the nodes that gave notice may leave. A node has its own time limit, at the end of which it leaves
without permission: so nothing here waits, and a round is never held by it.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

World = tuple[int, str]
"""Number and master of a round."""


class Noticed(NamedTuple):
    """Why a node is being preempted, and the time limit of the ranks."""

    reason: str
    until: float


class Order(NamedTuple):
    """The drain order for the nodes of a round."""

    reason: str
    until: float
    is_whole: bool


class Draining:
    """Which nodes are being preempted, and which have saved their shards in the present round."""

    def __init__(self) -> None:
        self._noticed: dict[str, Noticed] = {}
        self._world: World | None = None
        self._steps: dict[str, int] = {}
        """By node, the step that its workers have left."""
        self._told: dict[str, tuple[int | None, bool]] = {}
        """By node, the stream and the order that it was told last."""
        self._dismissed: dict[str, int | None] = {}
        """By node that was told that it may leave, the stream."""

    def __bool__(self) -> bool:
        return bool(self._noticed)

    def notice(self, node_id: str, reason: str, until: float) -> bool:
        """Record a preemption notice; return whether it is new."""
        is_news = node_id not in self._noticed
        self._noticed[node_id] = Noticed(reason, until)
        return is_news

    def forget(self, node_id: str) -> None:
        """Forget a removed node."""
        self._noticed.pop(node_id, None)

    def left(self, world: World, node_id: str, step: int) -> None:
        """Record that the workers of a node have saved their shards of the state of a step."""
        self._begin(world)
        self._steps[node_id] = step

    def orders(self, world: World, members: Mapping[str, int | None]) -> tuple[Order, list[str]]:
        """Return the order, and which members have not received it on their stream.

        Args:
            world: the round that runs.
            members: its nodes whose workers run, and their streams; some have given notice.
        """
        self._begin(world)
        going = [name for name in members if name in self._noticed]
        first = min(going, key=lambda name: self._noticed[name].until)
        reason, until = self._noticed[first]
        order = Order(
            f"node {first} is being preempted ({reason})", until, len(going) == len(members)
        )
        untold: list[str] = []
        for name, link in members.items():
            if self._told.get(name) != (link, order.is_whole):
                self._told[name] = (link, order.is_whole)
                untold.append(name)
        return order, untold

    def dismissals(self, members: Mapping[str, int | None]) -> tuple[int, list[str]]:
        """Return the step that all have saved, and which nodes are to be sent their dismissal.

        Args:
            members: as in ``orders``, which is called first.
        """
        steps = {self._steps.get(name) for name in members}
        (step, *others) = steps
        if step is None or others:
            return -1, []
        may: list[str] = []
        for name, link in members.items():
            if name in self._noticed and self._dismissed.get(name) != link:
                self._dismissed[name] = link
                may.append(name)
        return step, may

    def is_any(self, members: Collection[str]) -> bool:
        """Return whether any of these nodes is being preempted."""
        return any(name in self._noticed for name in members)

    def _begin(self, world: World) -> None:
        if world != self._world:
            self._world = world
            self._steps, self._told, self._dismissed = {}, {}, {}
