"""Details of the training time: waits for data, and slow steps."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from ...events.record import Record

DATA_WAIT: Final = "data wait"
SLOW_STEPS: Final = "slow steps"
_TRAINING: Final = "training"
MINUTE_S: Final = 45.0
"""Minimum training time for a mean: there is at least one report per minute."""
_HOUR_MINUTES: Final = 60
_LEAST_MINUTES: Final = 10
"""A median of fewer minutes is not meaningful."""


class Overlaps:
    """A fold over ``round.progressed``."""

    def __init__(self) -> None:
        self._slow = SlowSteps()
        self._waited_s = 0.0
        self._training_s = 0.0
        self._steps: tuple[bool, int] | None = None
        """Whether the script has reported steps, and their number."""

    @property
    def slow_s(self) -> float:
        """Training time beyond the same number of steps at the best hour's median; 0 if unknown."""
        return self._slow.seconds or 0.0

    def begin(self) -> None:
        """Start a round."""
        self._waited_s = self._training_s = 0.0
        self._steps = None

    def add(self, record: Record) -> float:
        """Process a report; return how long training has waited for data since the last one.

        Each rank waits for all others in each step, so the longest wait of a rank counts.
        """
        training_s = record.get("phases", {}).get(_TRAINING, 0.0)
        steps = record["steps"] >= 0, record.get("counted_steps", 0)
        if self._steps is not None and self._steps[0] == steps[0] and steps[1] >= self._steps[1]:
            more_s, more = max(0.0, training_s - self._training_s), steps[1] - self._steps[1]
            self._slow.add(more_s, more, record.get("reports", 1))
        self._training_s, self._steps = training_s, steps
        waits: Sequence[float] = record.get("data_wait_s", ())
        waited_s = max(waits, default=0.0)
        more_s, self._waited_s = max(0.0, waited_s - self._waited_s), waited_s
        return more_s


class BestHour:
    """The lowest median step time of all hours, from one value per minute."""

    def __init__(self) -> None:
        self._minutes: list[float] = []
        """Values of the current hour."""
        self._best_s: float | None = None
        """Lowest median of the completed hours."""

    def add(self, step_s: float, minutes: int = 1) -> None:
        """Add the step time of a minute, or its mean over several minutes."""
        for _ in range(minutes):
            self._minutes.append(step_s)
            if len(self._minutes) == _HOUR_MINUTES:
                self._best_s = self.step_s
                self._minutes.clear()

    @property
    def step_s(self) -> float | None:
        """The best median; the current hour counts after a few minutes. None before that."""
        if len(self._minutes) < _LEAST_MINUTES:
            return self._best_s

        current_s = median(self._minutes)
        return current_s if self._best_s is None else min(self._best_s, current_s)


class SlowSteps:
    """The training time and steps of a job, compared with the step time of the best hour.

    The sum of (step - median) over all steps is the training time minus the same number of median
    steps. The median is over the means of minutes, as a minute has many steps.
    """

    def __init__(self) -> None:
        self._open = (0.0, 0)
        self._hours = BestHour()
        self._total = (0.0, 0)

    def add(self, training_s: float, steps: int, minutes: int = 1) -> None:
        """Add the training between reports; ``minutes`` is the number of minutes between them."""
        seconds, count = self._open[0] + training_s, self._open[1] + steps
        self._open = seconds, count
        if seconds < MINUTE_S or not count:
            return
        self._open, self._total = (0.0, 0), (self._total[0] + seconds, self._total[1] + count)
        self._hours.add(seconds / count, minutes)

    @property
    def seconds(self) -> float | None:
        """Time beyond the same number of steps at the best hour's median; None if not known yet."""
        best_s = self._hours.step_s
        if best_s is None:
            return None
        training_s, steps = self._total
        return max(0.0, training_s - steps * best_s)
