"""What else is known of the training time: how much of it waited for data, or was slow steps."""

from collections.abc import Sequence
from typing import Final

from ...events.record import Record

DATA_WAIT: Final = "data wait"
SLOW_STEPS: Final = "slow steps"
_TRAINING: Final = "training"
MINUTE_S: Final = 45.0
"""The shortest training time whose mean is used: there is a report a minute, or more."""
_HOUR_MINUTES: Final = 60
_LEAST_MINUTES: Final = 10
"""A median of fewer is not meaningful."""


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
        """Training beyond as many steps of the median time of the best hour; 0: not known."""
        return self._slow.seconds or 0.0

    def begin(self) -> None:
        """Begin a round."""
        self._waited_s = self._training_s = 0.0
        self._steps = None

    def add(self, record: Record) -> float:
        """Take a report; return for how long training has waited for data since the last one.

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
    """The lowest median time of a step of all hours, from a time a minute."""

    def __init__(self) -> None:
        self._minutes: list[float] = []
        """Of the current hour."""
        self._best_s: float | None = None
        """Of the hours that have ended."""

    def add(self, step_s: float, minutes: int = 1) -> None:
        """Add the time of a step in a minute, or its mean over several."""
        for _ in range(minutes):
            self._minutes.append(step_s)
            if len(self._minutes) == _HOUR_MINUTES:
                self._best_s = self.step_s
                self._minutes.clear()

    @property
    def step_s(self) -> float | None:
        """The current hour's median counts from a few minutes on; None: there were fewer."""
        if len(self._minutes) < _LEAST_MINUTES:
            return self._best_s
        from statistics import median  # only now: it loads random and decimal

        current_s = median(self._minutes)
        return current_s if self._best_s is None else min(self._best_s, current_s)


class SlowSteps:
    """The training time and steps of a job, compared with the best hour's time of a step.

    The sum of (step - median) over all steps is the training time less that of as many median
    steps. The median is that of the means of minutes: a minute has too many steps to see each.
    """

    def __init__(self) -> None:
        self._open = (0.0, 0)
        """Training time and steps of the current minute."""
        self._hours = BestHour()
        """Of mean step times."""
        self._total = (0.0, 0)

    def add(self, training_s: float, steps: int, minutes: int = 1) -> None:
        """Add training between two reports, or between more of them, for that many minutes."""
        seconds, count = self._open[0] + training_s, self._open[1] + steps
        self._open = seconds, count
        if seconds < MINUTE_S or not count:
            return
        self._open, self._total = (0.0, 0), (self._total[0] + seconds, self._total[1] + count)
        self._hours.add(seconds / count, minutes)

    @property
    def seconds(self) -> float | None:
        """The time beyond as many steps of the best hour's median; None: not known yet."""
        best_s = self._hours.step_s
        if best_s is None:
            return None
        training_s, steps = self._total
        return max(0.0, training_s - steps * best_s)
