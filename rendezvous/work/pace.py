"""The recent rate of a counter, per second."""


class Pace:
    """The rate over the last one to two intervals."""

    __slots__ = ("_marks", "_stretch_s")

    def __init__(self, now: float, stretch_s: float) -> None:
        self._marks = [(now, 0)] * 2
        self._stretch_s = stretch_s

    def is_due(self, now: float) -> bool:
        """Return whether an interval has ended."""
        return now - self._marks[0][0] >= self._stretch_s

    def count(self, now: float, total: int) -> None:
        """Record the total, if an interval has ended."""
        if self.is_due(now):
            self._marks = [(now, total), self._marks[0]]

    def skip(self, gained: int) -> None:
        """Do not count ``gained``, which was gained some time ago."""
        self._marks = [(since, total + gained) for since, total in self._marks]

    def per_s(self, now: float, total: int) -> float:
        """Return the recent rate per second; 0 if unknown."""
        since, before = self._marks[1]
        return (total - before) / (now - since) if now > since else 0.0
