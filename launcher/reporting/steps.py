"""Steps in words: for the live line and for ``ft-run status``."""

_LATE_S, _LATE_STEPS = 10.0, 3.0
"""After so long, and as long as so many steps took of late, it is said how long there was none."""


def is_late(steps_per_s: float, idle_s: float) -> bool:
    """Return whether no step for so long is worth a word."""
    return idle_s >= _LATE_S and idle_s * steps_per_s >= (_LATE_STEPS if steps_per_s else 0.0)


def rate(steps_per_s: float) -> str:
    """Return steps per second in three digits, or as many as there are before the point."""
    return f"{steps_per_s:.0f}" if steps_per_s >= 100 else f"{steps_per_s:.3g}"
