"""The closing table of a job: where the time of this node went."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...events.event import Severity
from ...events.node import TimeAccounted
from ..history.advice import Advice, advised
from ..history.event_history import EventHistory
from ..history.overlaps import DATA_WAIT, SLOW_STEPS
from ..history.phases import Account, Spent
from ..history.recorder import Recorder
from ..history.steps import counted
from .display import Display

_TABLE_FROM_S: Final = 10.0
"""A shorter job has one line, and only if it was restarted."""
_ROWS: Final = 6
_TRAINING: Final = "training"
_SHOWN_SHARE: Final = 0.01
_NAME_CHARS: Final = 24
_SHOWN_S: Final = 0.05


def report_time(display: Display, recorder: Recorder, history: EventHistory) -> None:
    """Report where the time of this node went, at its end.

    The node with rank 0 shows it on its console: a table, or a line for a short job that was
    restarted. Files contain the event of every node.
    """
    is_long = recorder.uptime_s >= _TABLE_FROM_S
    if not (is_long or recorder.is_written or history.is_worth_folding):
        return
    folded = history.folded()
    accounting, summary = folded.account(recorder.node), folded.summary()
    if accounting.node_rank < 0:
        return  # no round has started
    event = accounted(accounting.account(recorder.uptime_s))
    is_first, is_long = accounting.node_rank == 0, event.seconds >= _TABLE_FROM_S
    has_line = is_first and (display.is_json if is_long else bool(event.restarts))
    display.event(event, None if has_line else Severity.DEBUG)
    advice = summary.advice if summary.measured is not None else None
    if advice is not None:
        display.event(advised(advice), None if is_first and display.is_json else Severity.DEBUG)
    if is_first and is_long and not display.is_json and display.shows(Severity.INFO):
        display.report(table(event, advice))


def accounted(account: Account) -> TimeAccounted:
    """Return an account as an event."""
    goodput = account.goodput
    return TimeAccounted(
        seconds=round(account.seconds, 6),
        phases=named(account.phases),
        restarts={kind: round(count) for kind, count in account.restarts.items()},
        restart_phases=named(account.restart_phases),
        lost={kind: round(seconds, 6) for kind, seconds in account.lost.items()},
        goodput=None if goodput is None else round(goodput, 4),
        data_wait_s=_rounded(account.overlapping.get(DATA_WAIT)),
        slow_steps_s=_rounded(account.overlapping.get(SLOW_STEPS)),
    )


def table(event: TimeAccounted, advice: Sequence[Advice] | None = None) -> str:
    """Return the table, of at most 12 lines plus the advice."""
    rows = _largest_first(event.phases)
    shown = [row for row in rows if row[1] >= _SHOWN_S][:_ROWS]
    other_s = event.seconds - sum(seconds for _, seconds in shown)
    if other_s >= _SHOWN_S:
        shown.append(("other", other_s))
    lines = ["Where the time went:"]
    for name, seconds in [*shown, ("total", event.seconds)]:
        share = seconds / (event.seconds or 1.0)
        lines.append(f"  {_cut(name):<24}{duration(seconds):>12}{share:>9.1%}")
    overlapping = {DATA_WAIT: event.data_wait_s, SLOW_STEPS: event.slow_steps_s}
    training_s = event.phases.get(_TRAINING, 0.0)
    shares = {name: seconds / training_s for name, seconds in overlapping.items() if seconds}
    if any(share >= _SHOWN_SHARE for share in shares.values()):
        lines.append(f"Of training: {', '.join(f'{n} {s:.0%}' for n, s in shares.items())}")
    if event.restarts:
        parts = _joined(_largest_first(event.restart_phases))
        took = duration(sum(event.restart_phases.values()))
        lines.append(f"{counted(event.restarts)}, {took}: {parts}")
    if event.goodput is not None:
        lost = f", training lost: {_joined(event.lost.items())}" if event.lost else ""
        lines.append(f"Goodput {event.goodput:.1%}{lost}")
    else:
        lines.append("Goodput not known: steps are not watched (--watch-workers)")
    if advice is not None:
        lines.append(f"Advice{':' if advice else ': none'}")
        lines += [f"  {one.text}" for one in advice]
    return "\n".join(lines)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def named(phases: Mapping[Spent, float]) -> dict[str, float]:
    """Return the seconds of phases and activities by their names."""
    named: dict[str, float] = {}
    for phase, seconds in phases.items():  # an activity may have the name of a phase
        named[phase.value] = round(named.get(phase.value, 0.0) + seconds, 6)
    return named


def _largest_first(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda amount: -amount[1])


def _joined(amounts: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in amounts)


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"


def duration(seconds: float) -> str:
    """Return ``0.4 ms``, ``35 ms``, ``3.2 s``, ``12:05`` or ``1:02:03``."""
    if 0 < seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
