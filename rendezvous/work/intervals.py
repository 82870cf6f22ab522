"""A set of whole numbers as intervals, small if the numbers are close together."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise


def pairs(bounds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the intervals of ``Intervals.bounds``."""
    return zip(bounds[::2], bounds[1::2], strict=True)


def are_bounds(bounds: Sequence[int], end: int) -> bool:
    """Return whether a peer's numbers are ``Intervals.bounds`` within 0 to ``end``."""
    is_rising = all(low < high for low, high in pairwise(bounds))
    return len(bounds) % 2 == 0 and is_rising and (not bounds or bounds[-1] <= end)


class Intervals:
    """A set of whole numbers; a change takes the time of a search and of moving the bounds."""

    __slots__ = ("bounds",)

    def __init__(self, bounds: Iterable[int] = ()) -> None:
        """``bounds``: ``[0, 3, 5, 6]`` are 0, 1, 2 and 5."""
        self.bounds = list(bounds)

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __len__(self) -> int:
        return sum(high - low for low, high in pairs(self.bounds))

    def add(self, low: int, high: int) -> None:
        """Add the numbers from ``low`` to ``high - 1``."""
        self._put(low, high, is_in=True)

    def remove(self, low: int, high: int) -> None:
        """Remove the numbers from ``low`` to ``high - 1``."""
        self._put(low, high, is_in=False)

    def _put(self, low: int, high: int, *, is_in: bool) -> None:
        if low >= high:
            return
        first, last = bisect_left(self.bounds, low), bisect_right(self.bounds, high)
        # An odd position is inside an interval: there, a removal starts or ends one.
        head = [low] if first % 2 != is_in else []
        self.bounds[first:last] = head + ([high] if last % 2 != is_in else [])

    def within(self, low: int, high: int) -> list[int]:
        """Return the bounds of the part of the set from ``low`` to ``high - 1``."""
        first, last = bisect_right(self.bounds, low), bisect_left(self.bounds, high)
        head, tail = [low] * (first % 2), [high] * (last % 2)
        return head + self.bounds[first:last] + tail if low < high else []

    def take(self, count: int) -> list[int]:
        """Remove the lowest numbers; return their bounds."""
        taken: list[int] = []
        for low, high in pairs(self.bounds):
            if count <= 0:
                break
            taken += (low, min(high, low + count))
            count -= high - low
        if taken:
            self.remove(0, taken[-1])
        return taken
