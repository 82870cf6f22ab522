"""The recent rate of a counter, per second. Pure."""


class Pace:
    """The rate over the last one to two stretches of time."""

    __slots__ = ("_marks", "_stretch_s")

    def __init__(self, now: float, stretch_s: float) -> None:
        """Start at 0, at a time in seconds."""
        self._marks = [(now, 0)] * 2
        self._stretch_s = stretch_s

    def is_due(self, now: float) -> bool:
        """Return whether a stretch is over."""
        return now - self._marks[0][0] >= self._stretch_s

    def count(self, now: float, total: int) -> None:
        """Record how many there are in all, if a stretch is over."""
        if self.is_due(now):
            self._marks = [(now, total), self._marks[0]]

    def skip(self, gained: int) -> None:
        """Do not count so many, which came some time ago."""
        self._marks = [(since, total + gained) for since, total in self._marks]

    def per_s(self, now: float, total: int) -> float:
        """Return the recent rate per second; 0: not known."""
        since, before = self._marks[1]
        return (total - before) / (now - since) if now > since else 0.0
