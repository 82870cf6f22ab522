"""The steps that a job has done and not lost, and the time that they took."""

from ...values import dataclass


@dataclass(slots=True)
class _Stretch:
    """Training from one number of steps to another."""

    first: int
    last: int
    seconds: float


class KeptSteps:
    """Stretches of training, in the order of their steps."""

    def __init__(self) -> None:
        """Start without a step."""
        self._stretches: list[_Stretch] = []

    def trained(self, first: int, last: int, seconds: float) -> None:
        """Add training from ``first`` to ``last`` completed steps."""
        if last > first:
            self._stretches.append(_Stretch(first, last, seconds))

    def back_to(self, step: int) -> float:
        """Forget the steps after one; return the seconds that they took."""
        lost_s = 0.0
        while self._stretches and self._stretches[-1].last > step:
            stretch = self._stretches.pop()
            steps = stretch.last - stretch.first
            part_s = stretch.seconds * min(1.0, (stretch.last - step) / steps)
            lost_s += part_s
            self.trained(stretch.first, step, stretch.seconds - part_s)
        return lost_s
