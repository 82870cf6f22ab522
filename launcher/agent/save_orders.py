"""What the workers of this node ask to be saved, until all that belongs together is asked for."""

from collections import Counter
from enum import Enum, auto

from ...values import dataclass
from ..saver.saves import HeldShare


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """A worker asks for its snapshot of a step to be saved."""

    local_rank: int
    buffer: int
    step: int


class Next(Enum):
    """What follows when a worker has asked."""

    WAIT = auto()
    """The shares of the other ranks belong to it, and not all have asked yet."""
    SAVE = auto()
    REFUSE = auto()
    """A share is not what its worker said: no rank waits for ever."""


class SaveOrders:
    """The orders of this round that wait for others."""

    def __init__(self, workers: int) -> None:
        """Have none.

        Args:
            workers: how many there are on this node.
        """
        self._workers = workers
        self._waiting: dict[int, SaveOrder] = {}
        """By local rank."""
        self._asked: Counter[int] = Counter()
        """By local rank, how often it has asked: on all nodes alike."""
        self._refused_step: int | None = None

    def begin(self) -> None:
        """A round begins."""
        self._waiting.clear()
        self._asked.clear()
        self._refused_step = None

    def add(self, order: SaveOrder, share: HeldShare | None) -> Next:
        """Take an order; return what follows.

        Args:
            order: of a worker.
            share: what it has left of that step; None: nothing.
        """
        self._waiting[order.local_rank] = order
        self._asked[order.local_rank] += 1
        if share is None or share.buffer != order.buffer:
            self._refused_step = order.step  # for the other ranks too
        if order.step == self._refused_step or share is None:
            return Next.REFUSE
        is_all = share.entry.is_replicated or len(self._waiting) == self._workers
        return Next.SAVE if is_all else Next.WAIT

    def attempt(self, local_rank: int) -> str:
        """Return what tells the newest order of a worker from the others of this round."""
        return str(self._asked[local_rank])

    def take(self) -> list[SaveOrder]:
        """Return the orders that wait, which do not wait any more."""
        orders = list(self._waiting.values())
        self._waiting.clear()
        return orders
