"""Collects the checkpoint requests of this node's workers until all ranks have sent theirs."""

from collections import Counter
from enum import Enum, auto

from ...values import dataclass
from ..saver.saves import HeldShard


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """A worker's request to save its snapshot of a step."""

    local_rank: int
    buffer: int
    step: int


class Next(Enum):
    """The action after a request."""

    WAIT = auto()
    """Other ranks of this node have not sent their requests yet."""
    SAVE = auto()
    REFUSE = auto()
    """A request does not match the memory: answer all ranks, so that none waits forever."""


class SaveOrders:
    """The pending requests of this round."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._waiting: dict[int, SaveOrder] = {}
        """By local rank."""
        self._asked: Counter[int] = Counter()
        """Number of requests by local rank; equal on all nodes."""
        self._refused_step: int | None = None

    def begin(self) -> None:
        """Start a round."""
        self._waiting.clear()
        self._asked.clear()
        self._refused_step = None

    def add(self, order: SaveOrder, shard: HeldShard | None) -> Next:
        """Add a request; return what to do.

        Args:
            order: the request of a worker.
            shard: the worker's shard of the step; None: it has none.
        """
        self._waiting[order.local_rank] = order
        self._asked[order.local_rank] += 1
        if shard is None or shard.buffer != order.buffer:
            self._refused_step = order.step  # for the other ranks too
        if order.step == self._refused_step or shard is None:
            return Next.REFUSE
        is_all = shard.entry.is_replicated or len(self._waiting) == self._workers
        return Next.SAVE if is_all else Next.WAIT

    def attempt(self, local_rank: int) -> str:
        """Return a name for a worker's newest request; it is unique in this round."""
        return str(self._asked[local_rank])

    def take(self) -> list[SaveOrder]:
        """Remove and return the pending requests."""
        orders = list(self._waiting.values())
        self._waiting.clear()
        return orders
