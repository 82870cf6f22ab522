"""A machine that trains, with neighbours: what the tuner would read of it, without a clock."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ft_run.launcher.tuning.trial import Order, Reading

STEP_S = 0.05
_GRID_S = 1.0

Noise = Callable[[random.Random], Iterator[float]]
"""Yields by how much the machine is slower, second by second."""


def quiet(chance: random.Random) -> Iterator[float]:
    while True:
        yield 1 + chance.gauss(0, 0.03)


def drifting(chance: random.Random) -> Iterator[float]:
    """Warms up, is throttled, recovers: a slow wave and a random walk."""
    period_s, phase, size = chance.uniform(100, 2000), chance.uniform(0, 6.3), 0.1
    walk = 0.0
    for second, of_second in enumerate(quiet(chance)):
        walk = 0.999 * walk + chance.gauss(0, 0.004)
        yield of_second + size * math.sin(6.3 * second / period_s + phase) + walk


def _on_and_off(
    on_s: float, off_s: float, slower: tuple[float, float], chance: random.Random
) -> Iterator[float]:
    source = quiet(chance)
    while True:
        for _ in range(math.ceil(chance.expovariate(1 / off_s))):
            yield next(source)
        factor = chance.uniform(*slower)
        for _ in range(math.ceil(chance.expovariate(1 / on_s))):
            yield factor * next(source)


bursty: Noise = partial(_on_and_off, 2, 60, (1.5, 4.0))
disturbed: Noise = partial(_on_and_off, 10, 70, (1.05, 1.6))
"""Of the blocks (20 s), 1 - 70 / 80 * exp(-20 / 70) = a third have a neighbour at some time."""
NOISES: Mapping[str, Noise] = {
    "quiet": quiet,
    "drifting": drifting,
    "bursty": bursty,
    "disturbed": disturbed,
}


class TunedMachine:
    """Steps take ``STEP_S``, times what the neighbours and the settings do to that."""

    def __init__(
        self,
        seed: int,
        noise: Noise,
        slowness: Callable[[Mapping[str, int]], float],
        values: Mapping[str, int],
        *,
        switch_s: float = 0.2,
    ) -> None:
        self._noise = noise(random.Random(seed))
        self._slowness, self._values = slowness, values
        self._switch_s = switch_s
        self._work = self._now_s = self._at_s = self._left_s = 0.0
        self._factor = 1.0
        self.lost_s = 0.0
        """What switches and slower settings have cost, beyond what the first settings take."""
        self._first = slowness(values)

    def reading(self, **more: float) -> Reading:
        steps = int(self._work)
        known = {"waited_s": 0.2 * self._now_s, "switch_s": self._switch_s, **more}
        return Reading(self._now_s, self._at_s, steps, self._values, **known)

    def follow(self, order: Order) -> Reading:
        """Put the settings into effect, and return what is known when the tuner asks again."""
        if order.values != self._values:
            self._values = order.values
            self._now_s += self._switch_s
            self.lost_s += self._switch_s
        left_s = order.look_in_s
        slowness = self._slowness(self._values)
        while left_s > 1e-9:
            if self._left_s <= 1e-9:
                self._left_s, self._factor = _GRID_S, max(0.2, next(self._noise))
            took_s = min(left_s, self._left_s)
            step_s = STEP_S * self._factor * slowness
            self._work += took_s / step_s
            self._now_s += took_s
            self._at_s = max(self._at_s, self._now_s - (self._work % 1) * step_s)
            self.lost_s += took_s * max(0.0, 1 - self._first / slowness)
            self._left_s -= took_s
            left_s -= took_s
        return self.reading()
