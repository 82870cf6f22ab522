"""How long steps took beyond the median of the best hour: a fold over the minutes of a job."""

from statistics import median

_MINUTE_S = 45.0
"""The shortest training time whose mean is used: there is a report a minute, or more."""
_HOUR_MINUTES = 60
_LEAST_MINUTES = 10
"""A median of fewer is not meaningful."""


class SlowSteps:
    """The training time and steps of a job, and the best hour's time of a step.

    The sum of (step - median) over all steps is the training time less that of as many median
    steps. The median is that of the means of minutes: a minute has too many steps to see each.
    """

    def __init__(self) -> None:
        """Start without steps."""
        self._open = (0.0, 0)
        """Training time and steps of the current minute."""
        self._minutes: list[float] = []
        """Mean step times of the current hour."""
        self._best_s: float | None = None
        """The lowest median of an hour that has ended."""
        self._total = (0.0, 0)

    def add(self, training_s: float, steps: int) -> None:
        """Add training between two reports."""
        seconds, count = self._open[0] + training_s, self._open[1] + steps
        self._open = seconds, count
        if seconds < _MINUTE_S or not count:
            return
        self._open, self._total = (0.0, 0), (self._total[0] + seconds, self._total[1] + count)
        self._minutes.append(seconds / count)
        if len(self._minutes) == _HOUR_MINUTES:
            self._best_s = self._best_of_hours()
            self._minutes.clear()

    @property
    def seconds(self) -> float | None:
        """The time beyond as many steps of the best hour's median; None: not known yet."""
        best_s = self._best_of_hours()
        if best_s is None:
            return None
        training_s, steps = self._total
        return max(0.0, training_s - steps * best_s)

    def _best_of_hours(self) -> float | None:
        """Return the lowest median, the current hour's included if it has enough minutes."""
        if len(self._minutes) < _LEAST_MINUTES:
            return self._best_s
        current_s = median(self._minutes)
        return current_s if self._best_s is None else min(self._best_s, current_s)
