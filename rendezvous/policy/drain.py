"""Before nodes leave or the world grows, all ranks save a consistent snapshot. Pure.

A node that is being preempted gives notice; a larger world is planned. Then the nodes of the round
are ordered to drain. When each has reported that its workers have saved their shards of the state
of one step, the same for all, the nodes that gave notice may leave, or the round may be stopped for
the larger one. Each has its own time limit, at the end of which it happens without permission: so
nothing here waits, and a round is never held by it.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

World = tuple[int, str]
"""Number and master of a round."""
_OTHER_LINK = -1
"""No stream of this master."""


class Reason(NamedTuple):
    """Why the ranks save a snapshot, and their time limit."""

    words: str
    until: float


class _Kind(NamedTuple):
    """What a node must know of an order; it is sent another one if this changes."""

    is_whole: bool
    resizes: bool
    grows: bool
    number: int


class Order(NamedTuple):
    """The drain order for the nodes of a round; the fields are those of ``Drain``."""

    reason: str
    until: float
    is_whole: bool
    resizes: bool
    grows: bool
    number: int

    @property
    def kind(self) -> _Kind:
        """What tells it from another order."""
        return _Kind(self.is_whole, self.resizes, self.grows, self.number)


class Draining:
    """Which nodes are being preempted, and which have saved their shards in the present round."""

    def __init__(self) -> None:
        self._noticed: dict[str, Reason] = {}
        self._growth: Reason | None = None
        """Of the present round; None: no larger world is planned."""
        self._number = 0
        """Of the present or next order of the round; another one after each that is cancelled."""
        self._world: World | None = None
        self._steps: dict[str, int] = {}
        """By node, the step whose state its workers have saved."""
        self._told: dict[str, tuple[int | None, _Kind | None]] = {}
        """By node, the stream and the order that was sent last; None: it was cancelled."""
        self._dismissed: dict[str, int | None] = {}
        """By node that was told that it may leave, the stream."""

    # --- why -----------------------------------------------------------------------------------

    def notice(self, node_id: str, reason: str, until: float) -> bool:
        """Record a preemption notice; return whether it is new."""
        is_news = node_id not in self._noticed
        self._noticed[node_id] = Reason(reason, until)
        return is_news

    def forget(self, node_id: str) -> None:
        """Forget a removed node."""
        self._noticed.pop(node_id, None)

    def plan_growth(self, world: World, reason: str, until: float) -> None:
        """Have a round drained because a larger one follows."""
        self._begin(world)
        self._growth = Reason(reason, until)

    def cancel_growth(self, members: Collection[str]) -> None:
        """No larger round follows: ranks continue, unless members are being preempted."""
        self._growth = None
        if not self.is_any(members):
            self._number += 1
            self._steps.clear()

    # --- what nodes are told, and report ---------------------------------------------------------

    def take_over(self, world: World, members: Collection[str], number: int) -> None:
        """Begin with a round of an earlier master, which may have ordered what is cancelled now.

        Args:
            world: the round.
            members: its nodes.
            number: of the next order, unlike any of another master.
        """
        self._begin(world)
        self._number = number
        self._told = dict.fromkeys(members, (_OTHER_LINK, None))

    def left(self, world: World, node_id: str, step: int, number: int | None) -> None:
        """Record that the workers of a node have saved their shards of the state of a step.

        Args:
            world: the round that runs.
            node_id: the node.
            step: as in ``Drained``.
            number: of the order; a cancelled one no longer counts. None: not known.
        """
        self._begin(world)
        if number is None or number == self._number:
            self._steps[node_id] = step

    def order(self, world: World, members: Collection[str], *, resizes: bool) -> Order | None:
        """Return the order for the nodes of a round; None: there is no reason for one.

        Args:
            world: the round that runs.
            members: its nodes whose workers run.
            resizes: the next world has another size, if nodes are being preempted.
        """
        self._begin(world)
        going = self.going(members)
        if going:
            first = min(going, key=lambda name: self._noticed[name].until)
            words, until = self._noticed[first]
            reason = f"node {first} is being preempted ({words})"
            is_whole = len(going) == len(members)
            return Order(reason, until, is_whole, resizes, False, self._number)
        if self._growth is not None:
            return Order(*self._growth, False, True, True, self._number)
        return None

    def untold(self, order: Order | None, members: Mapping[str, int | None]) -> list[str]:
        """Return which members have not received an order on their stream, and count it as sent.

        Args:
            order: the result of ``order``. None: those that save for a larger world learn that it
                is cancelled.
            members: as in ``order``, and their streams.
        """
        kind = order.kind if order is not None else None
        untold: list[str] = []
        for name, link in members.items():
            told = self._told.get(name)
            may_save = told is not None and (told[1] is None or told[1].grows)
            if told != (link, kind) and (kind is not None or may_save):
                self._told[name] = (link, kind)
                untold.append(name)
        return untold

    def saved(self, members: Collection[str]) -> int | None:
        """Return the step that all members have saved; None: not all yet.

        -1: the workers of some node keep no state, or have kept it themselves.
        """
        steps = {self._steps.get(name) for name in members}
        return steps.pop() if len(steps) == 1 else None

    def saves_none(self, members: Collection[str]) -> bool:
        """Return whether some member has reported that its workers keep no state."""
        return any(self._steps.get(name) == -1 for name in members)

    def dismissals(self, members: Mapping[str, int | None]) -> tuple[int, list[str]]:
        """Return the step that all have saved, and which nodes are to be sent their dismissal."""
        step = self.saved(members)
        if step is None:
            return -1, []
        may: list[str] = []
        for name, link in members.items():
            if name in self._noticed and self._dismissed.get(name) != link:
                self._dismissed[name] = link
                may.append(name)
        return step, may

    def going(self, members: Collection[str]) -> list[str]:
        """Return which of these nodes are being preempted."""
        return [name for name in members if name in self._noticed]

    def is_any(self, members: Collection[str]) -> bool:
        """Return whether any of these nodes is being preempted."""
        return any(name in self._noticed for name in members)

    @property
    def number(self) -> int:
        """Of the present or next order."""
        return self._number

    @property
    def is_idle(self) -> bool:
        """Whether no node has anything to be told."""
        return not (self._noticed or self._growth is not None or self._told)

    def _begin(self, world: World) -> None:
        if world != self._world:
            self._world, self._growth, self._number = world, None, 0
            self._steps, self._told, self._dismissed = {}, {}, {}
