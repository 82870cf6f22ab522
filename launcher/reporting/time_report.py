"""The closing table of a job: where the time of this node went."""

from collections.abc import Iterable, Mapping
from typing import Final

from ...events.event import Severity
from ...events.node import TimeAccounted
from .accounting import NAMES, Accounting, Phase
from .display import Display

_TABLE_FROM_S: Final = 10.0
"""A shorter job has one line, and only if it was restarted."""
_ROWS: Final = 6
_SHOWN_S: Final = 0.05


class TimeReport:
    """Follows the events of this node, and reports at its end."""

    def __init__(self, display: Display) -> None:
        """Begin to follow the events that the display records, if it does."""
        self._display = display
        self._accounting = Accounting()
        if display.recorder is not None:
            display.recorder.add(self._accounting.add, NAMES)

    def close(self) -> None:
        """Report, once, where the time went.

        The node with rank 0 shows it on its console: a table, or a line for a short job. The event
        is recorded on every node.
        """
        recorder, accounting = self._display.recorder, self._accounting
        if recorder is None or accounting.node_rank < 0:
            return  # no round has started
        event = time_accounted(accounting, recorder.uptime_s)
        is_shown = accounting.node_rank == 0
        has_table = is_shown and event.seconds >= _TABLE_FROM_S
        has_line = is_shown and not has_table and bool(event.restarts)
        self._display.event(event, None if has_line else Severity.DEBUG)
        if has_table and self._display.shows(Severity.INFO):
            self._display.report(table(event))


def time_accounted(accounting: Accounting, now_s: float) -> TimeAccounted:
    """Return the event of where the time went until now, by ``uptime_s``."""
    account = accounting.account(now_s)
    goodput = account.goodput
    return TimeAccounted(
        seconds=round(account.seconds, 6),
        phases=_named(account.phases),
        restarts={kind: round(count) for kind, count in account.restarts.items()},
        restart_phases=_named(account.restart_phases),
        lost={kind: round(seconds, 6) for kind, seconds in account.lost.items()},
        goodput=None if goodput is None else round(goodput, 4),
    )


def table(event: TimeAccounted) -> str:
    """Return the table, of at most 12 lines."""
    rows = _largest_first(event.phases)
    shown = [row for row in rows if row[1] >= _SHOWN_S][:_ROWS]
    other_s = event.seconds - sum(seconds for _, seconds in shown)
    if other_s >= _SHOWN_S:
        shown.append(("other", other_s))
    lines = ["Where the time went:"]
    for name, seconds in [*shown, ("total", event.seconds)]:
        share = seconds / event.seconds
        lines.append(f"  {name:<24}{_duration(seconds):>12}{share:>9.1%}")
    if event.restarts:
        parts = _joined(_largest_first(event.restart_phases))
        lines.append(f"{_counted(event.restarts)}: {parts}")
    if event.goodput is not None:
        lost = f", training lost: {_joined(event.lost.items())}" if event.lost else ""
        lines.append(f"Goodput {event.goodput:.1%}{lost}")
    elif Phase.RUNNING.value in event.phases:
        lines.append("Goodput not known: steps are not watched (--watch-workers)")
    return "\n".join(lines)


def _named(phases: Mapping[Phase, float]) -> dict[str, float]:
    return {phase.value: round(phases[phase], 6) for phase in Phase if phase in phases}


def _largest_first(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda amount: -amount[1])


def _joined(amounts: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {_duration(seconds)}" for name, seconds in amounts)


def _counted(restarts: Mapping[str, int]) -> str:
    count = sum(restarts.values())
    kinds = ", ".join(f"{kind} {number}" for kind, number in restarts.items())
    return f"{count} restart{'s' * (count != 1)} ({kinds})"


def _duration(seconds: float) -> str:
    """Return ``35 ms``, ``3.2 s``, ``12:05`` or ``1:02:03``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
