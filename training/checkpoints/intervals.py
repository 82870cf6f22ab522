"""When a snapshot or checkpoint is due: after a number of steps, after a time, or never."""

import re
import time

_UNITS_S = {"s": 1, "min": 60, "h": 3600}
_TIME = "a time, e.g. '30s', '10min' or '2h', or None"


def time_s(name: str, value: str | None) -> float | None:
    """Return a time in seconds; None: no limit.

    Args:
        name: of the argument, for the error.
        value: e.g. ``10min``.

    Raises:
        ValueError: it is neither a time nor None.
    """
    seconds = _time_s(value)
    if seconds is None and value is not None:
        raise ValueError(f"invalid value {value!r} for {name}: expected {_TIME}")
    return seconds


def _time_s(value: object) -> int | None:
    match = re.fullmatch(r"(\d+) ?(s|min|h)", value) if isinstance(value, str) else None
    return (int(match[1]) * _UNITS_S[match[2]] or None) if match is not None else None


class Interval:
    """A number of steps, a time, or never (then it is false)."""

    def __init__(self, name: str, value: int | str | None) -> None:
        """Parse the value of an argument.

        Raises:
            ValueError: it is neither a number of steps, a time nor None.
        """
        self._steps: int | None = None
        self._time_s = _time_s(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            self._steps = value
        elif value is not None and self._time_s is None:
            raise ValueError(
                f"invalid value {value!r} for {name}: expected a number of steps >= 1, {_TIME}"
            )
        self._since, self._since_s = 0, time.monotonic()

    def __bool__(self) -> bool:
        return self._steps is not None or self._time_s is not None

    def restart(self, number: int, now: float) -> None:
        """Count from a step and a time at which it was done."""
        self._since, self._since_s = number, now

    def skip(self, number: int) -> None:
        """Leave out a step at which it was due; a time stays due until ``restart``."""
        self._since = number

    def is_due(self, number: int, has_elapsed: int) -> bool:
        """Return whether it is due at a step.

        Args:
            number: of the step.
            has_elapsed: whether ``has_elapsed`` is true on any rank.
        """
        if self._steps is not None:
            return number // self._steps > self._since // self._steps
        return bool(has_elapsed)

    def has_elapsed(self, now: float) -> bool:
        """Return whether the time has elapsed on this rank; false for a number of steps."""
        return self._time_s is not None and now - self._since_s >= self._time_s
