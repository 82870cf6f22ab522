"""Formats step counts for the live line and for ``ft-run status``."""

_LATE_S, _LATE_STEPS = 10.0, 3.0
"""After this time, and after the recent duration of this many steps, the time without a step is
shown."""


def is_late(steps_per_s: float, idle_s: float) -> bool:
    """Return whether a time without a step is long enough to be shown."""
    return idle_s >= _LATE_S and idle_s * steps_per_s >= (_LATE_STEPS if steps_per_s else 0.0)


def rate(steps_per_s: float) -> str:
    """Return steps per second in three digits, or all digits before the decimal point."""
    return f"{steps_per_s:.0f}" if steps_per_s >= 100 else f"{steps_per_s:.3g}"
