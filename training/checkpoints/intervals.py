"""How often a script wants something done: every so many steps, after a time, or never."""

import re
import time

_UNITS_S = {"s": 1, "min": 60, "h": 3600}


def time_s(name: str, value: str | None) -> float | None:
    """Return a time in seconds; None: none.

    Args:
        name: of the argument.
        value: such as ``10min``.

    Raises:
        ValueError: it is none.
    """
    found = _time_s(value)
    if found is None and value is not None:
        raise ValueError(
            f"invalid value {value!r} for {name}: expected a time, e.g. '30s', '10min' or '2h', or "
            "None"
        )
    return found


def _time_s(value: object) -> int | None:
    """Return what a text says in seconds; None: that is no time."""
    match = re.fullmatch(r"(\d+) ?(s|min|h)", value) if isinstance(value, str) else None
    return (int(match[1]) * _UNITS_S[match[2]] or None) if match is not None else None


class Interval:
    """How often something is done: a number of steps, a time, or never."""

    def __init__(self, name: str, value: int | str | None) -> None:
        """Read a value.

        Raises:
            ValueError: it is none of these.
        """
        self._steps: int | None = None
        self._time_s = _time_s(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            self._steps = value
        elif value is not None and self._time_s is None:
            raise ValueError(
                f"invalid value {value!r} for {name}: expected a number of steps >= 1, a time, "
                f"e.g. '30s', '10min' or '2h', or None"
            )
        self._since, self._since_s = 0, time.monotonic()

    def __bool__(self) -> bool:
        return self._steps is not None or self._time_s is not None

    def begin(self, number: int, now: float) -> None:
        """It has been done at a step."""
        self._since, self._since_s = number, now

    def skip(self, number: int) -> None:
        """It is not possible at a step; where it is a time, it is done as soon as it is."""
        self._since = number

    def is_due(self, number: int, is_over: int) -> bool:
        """Return whether it is to be done at a step, given whether the time is over on a rank."""
        if self._steps is not None:
            return number // self._steps > self._since // self._steps
        return bool(is_over)

    def is_over(self, now: float) -> bool:
        """Return whether the time is over on this rank."""
        return self._time_s is not None and now - self._since_s >= self._time_s
