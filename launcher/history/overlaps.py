"""What else is known of the training time: how much of it waited for data, or was slow steps."""

from collections.abc import Sequence
from typing import Final

from ...events.record import Record
from .slow_steps import SlowSteps

DATA_WAIT: Final = "data wait"
SLOW_STEPS: Final = "slow steps"
_TRAINING: Final = "training"


class Overlaps:
    """A fold over ``round.progressed``."""

    def __init__(self) -> None:
        """Begin before the first round."""
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
            self._slow.add(max(0.0, training_s - self._training_s), steps[1] - self._steps[1])
        self._training_s, self._steps = training_s, steps
        waits: Sequence[float] = record.get("data_wait_s", ())
        waited_s = max(waits, default=0.0)
        more_s, self._waited_s = max(0.0, waited_s - self._waited_s), waited_s
        return more_s
