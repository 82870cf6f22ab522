"""Formats step and restart counts for the live line, ``ft-run status`` and tables."""

from collections.abc import Mapping

_LATE_S, _LATE_STEPS = 10.0, 3.0
"""Idle time is shown after at least 10 s and at least three recent step durations."""


def is_late(steps_per_s: float, idle_s: float) -> bool:
    """Return whether a time without a step is long enough to be shown."""
    return idle_s >= _LATE_S and idle_s * steps_per_s >= (_LATE_STEPS if steps_per_s else 0.0)


def counted(restarts: Mapping[str, int]) -> str:
    """Return ``2 restarts (hang: 1, worker: 1)`` for restarts by kind of their cause."""
    count = sum(restarts.values())
    kinds = ", ".join(f"{kind}: {number}" for kind, number in restarts.items())
    return f"{count} restart{'s' * (count != 1)} ({kinds})"


def rate(steps_per_s: float) -> str:
    """Return steps per second in three digits, or all digits before the decimal point."""
    return f"{steps_per_s:.0f}" if steps_per_s >= 100 else f"{steps_per_s:.3g}"
