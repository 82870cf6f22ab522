"""The next trial of ``--auto-tune on``: one value after the other, within a budget. No I/O.

The tuner has no clock. It receives readings and answers with the settings that should be in effect,
and when it needs the next reading.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import NamedTuple

from .trial import RULES, Budget, Order, Outcome, Reading, Trial, Values

NUM_WORKERS, PREFETCH = SETTINGS = "num_workers", "prefetch_factor"
_PREFETCH_MAX = 16
"""Each prefetched batch takes memory of the host."""
_IDLE_S = 60.0


class Knob(NamedTuple):
    """A setting of the loader."""

    name: str
    candidates: Callable[[int], Sequence[int]]
    """Returns the values to try, other than the current one, the most promising first."""


class Tried(NamedTuple):
    """A trial that has ended."""

    name: str
    old: int
    new: int
    outcome: Outcome


class Tuner:
    """The trials of a job."""

    def __init__(self, knobs: Sequence[Knob], kept: Values) -> None:
        self.knobs, self.budget = knobs, Budget()
        self.tried: list[Tried] = []
        self.kept: Values = kept
        """Values that were accepted."""
        self._forbidden: set[tuple[str, int]] = set()
        """Each value is tried once."""
        self.trying: tuple[str, int, int] | None = None
        """Name, old and new value of the current trial."""
        self._running: Generator[Order, Reading, None] | None = None
        self._last: Reading | None = None
        """The previous reading, of the same round."""

    def read(self, reading: Reading) -> Order | None:
        """Process a reading; return the next order, or None if nothing is left to try.

        Args:
            reading: of the training, at least one step of this round after the first one.
        """
        if self._last is not None:
            self.budget.trained_s += max(0.0, reading.at_s - self._last.at_s)
        self._last = reading
        if self.trying is not None and self.trying[0] not in reading.values:
            self.interrupt("")  # training has ended, or the script reads other loaders
        try:
            if self._running is None:
                self._running = self._run(reading)
                return next(self._running)
            return self._running.send(reading)
        except StopIteration:
            return None

    def interrupt(self, failure: str) -> None:
        """End the current trial, because the workers are gone; the accepted values apply.

        ``failure`` is a failure that the new value has caused, which is then not tried again; empty
        if it has not caused any.
        """
        if self._running is not None:
            self._running.close()
        trying, self.trying = self.trying, None
        self._running = self._last = None
        if trying is not None:
            name, old, new = trying
            if not failure:
                self._forbidden.discard((name, new))
            reason = f"failed: {failure}" if failure else "the round ended"
            self.tried.append(Tried(name, old, new, Outcome(False, reason)))

    def _run(self, reading: Reading) -> Generator[Order, Reading, None]:
        while len(self.tried) < RULES.trials_max:
            begin, settings = reading, self._settings(reading)
            while not self._is_measured(begin, reading):
                reading = yield Order(settings, self._rest_s(begin, reading))
                if reading.values != settings:
                    begin, settings = reading, self._settings(reading)
            candidates = self._candidates(settings)
            if not candidates and settings:
                return
            waits = reading.waited_s - begin.waited_s > RULES.wait_share * (
                reading.at_s - begin.at_s
            )
            missing_s = self.budget.missing_s(reading.switch_s)
            if not candidates or not waits or missing_s > 0:
                reading = yield Order(settings, max(_IDLE_S, min(missing_s, 10 * _IDLE_S)))
                continue
            knob, new = candidates[0]
            name, old = knob.name, settings[knob.name]
            self._forbidden |= {(name, old), (name, new)}
            self.trying = name, old, new
            trial = Trial(settings, {**settings, name: new}, self.budget)
            outcome = yield from trial.run(reading)
            self.trying = None
            self.tried.append(Tried(name, old, new, outcome))
            if outcome.is_accepted:
                self.kept = {**self.kept, name: new}
            reading = self._last or reading

    def _settings(self, reading: Reading) -> Values:
        """Return the settings that should be in effect without a trial."""
        kept = {name: value for name, value in self.kept.items() if name in reading.values}
        return {**reading.values, **kept}

    def _is_measured(self, begin: Reading, now: Reading) -> bool:
        steps, took_s = now.steps - begin.steps, now.at_s - begin.at_s
        return steps >= RULES.block_steps and took_s >= RULES.block_s

    def _rest_s(self, begin: Reading, now: Reading) -> float:
        """Return the approximate time until the measurement before a trial is complete."""
        steps, took_s = now.steps - begin.steps, now.at_s - begin.at_s
        step_s = took_s / steps if steps else 0.0
        rest_s = max(RULES.block_s - took_s, (RULES.block_steps - steps) * step_s)
        return min(max(1.0, rest_s), _IDLE_S)

    def _candidates(self, values: Values) -> list[tuple[Knob, int]]:
        return [
            (knob, value)
            for knob in self.knobs
            if knob.name in values
            for value in knob.candidates(values[knob.name])
            if (knob.name, value) not in self._forbidden
        ]


def of_loader(cpus: float, workers: int) -> tuple[Knob, ...]:
    """Return the settings of a loader.

    ``cpus`` is the CPU limit of this node, which its ``workers`` training processes share.
    """
    most = max(1, int(cpus / workers))
    return (
        Knob(NUM_WORKERS, partial(_beside, most=most)),
        Knob(PREFETCH, partial(_beside, most=_PREFETCH_MAX)),
    )


def _beside(value: int, *, most: int) -> Sequence[int]:
    found = [] if value >= most else [min(2 * value, most)]
    if value > 1:
        found.append(value // 2)
    return found
