"""The closing table of a job: where the time of this node went."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ...events.event import Severity
from ...events.node import TimeAccounted
from ...events.record import Record
from ...events.tuning import TuningAdvised, TuningMeasured
from ..history.accounted import NAMES
from ..history.overlaps import DATA_WAIT, SLOW_STEPS
from ..history.recorder import Recorder
from .display import Display

if TYPE_CHECKING:
    from ..history.accounting import Account, Accounting
    from ..history.measured import Measures
    from ..history.phases import Spent

_TABLE_FROM_S: Final = 10.0
"""A shorter job has one line, and only if it was restarted."""
_ROWS: Final = 6
_TRAINING: Final = "training"
_SHOWN_SHARE: Final = 0.01
_NAME_CHARS: Final = 24
_SHOWN_S: Final = 0.05
_RECORDS_KEPT: Final = 100


class TimeReport:
    """Follows the events of this node, and reports at its end."""

    def __init__(self, display: Display) -> None:
        """Begin to follow the events that the display records, if it does."""
        self._display = display
        self._records: list[Record] = []
        """Those that are not accounted for yet: a short job need not load the accounting."""
        self._accounting: Accounting | None = None
        self._measures: Measures | None = None
        """Of ``--auto-tune advise``."""
        if display.recorder is not None:
            display.recorder.add(self._add, NAMES | {TuningMeasured.name})

    def close(self) -> None:
        """Report, once, where the time went.

        The node with rank 0 shows it on its console: a table, or a line for a short job that was
        restarted. Files have the event of every node.
        """
        recorder = self._display.recorder
        if recorder is None or not self._is_wanted(recorder):
            return
        accounting = self.folded()
        if accounting.node_rank < 0:
            return  # no round has started
        event = time_accounted(accounting, recorder.uptime_s)
        is_first, is_long = accounting.node_rank == 0, event.seconds >= _TABLE_FROM_S
        is_json = self._display.is_json
        has_line = is_first and (bool(event.restarts) if not is_long else is_json)
        self._display.event(event, None if has_line else Severity.DEBUG)
        advised = self._advised()
        if advised is not None:
            self._display.event(advised, None if is_first and is_json else Severity.DEBUG)
        if is_first and is_long and not is_json and self._display.shows(Severity.INFO):
            self._display.report(table(event, advised))

    def _add(self, record: Record) -> None:
        self._records.append(record)
        if len(self._records) >= _RECORDS_KEPT:
            self.folded()

    def _is_wanted(self, recorder: Recorder) -> bool:
        is_restarted = any(record["name"] == "restart.decided" for record in self._records)
        is_long = self._accounting is not None or recorder.uptime_s >= _TABLE_FROM_S
        return is_long or is_restarted or recorder.is_written

    def folded(self) -> "Accounting":
        """Return where the time went until the last event."""
        from ..history.accounting import Accounting

        if self._accounting is None:
            self._accounting = Accounting()
        for record in self._records:
            self._accounting.add(record)
            if record["name"] == TuningMeasured.name:
                self._measure(record)
        self._records.clear()
        return self._accounting

    def _measure(self, record: Record) -> None:
        from ..history.measured import Measures  # only with --auto-tune advise

        self._measures = self._measures or Measures()
        self._measures.add(record)

    def _advised(self) -> TuningAdvised | None:
        """Return the advice; None: nothing was measured."""
        if self._measures is None or self._measures.measured is None:
            return None
        from ..history.advice import advice

        return TuningAdvised(tuple(one.text for one in advice(self._measures.measured)))


def time_accounted(accounting: "Accounting", now_s: float) -> TimeAccounted:
    """Return the event of where the time went until now, by ``uptime_s``."""
    return accounted(accounting.account(now_s))


def accounted(account: "Account") -> TimeAccounted:
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


def table(event: TimeAccounted, advised: TuningAdvised | None = None) -> str:
    """Return the table, of at most 12 lines and those of the advice."""
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
        lines.append(f"{_counted(event.restarts)}, {took}: {parts}")
    if event.goodput is not None:
        lost = f", training lost: {_joined(event.lost.items())}" if event.lost else ""
        lines.append(f"Goodput {event.goodput:.1%}{lost}")
    else:
        lines.append("Goodput not known: steps are not watched (--watch-workers)")
    if advised is not None:
        lines.append(f"Advice{':' if advised.lines else ': none'}")
        lines += [f"  {line}" for line in advised.lines]
    return "\n".join(lines)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def named(phases: "Mapping[Spent, float]") -> dict[str, float]:
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


def _counted(restarts: Mapping[str, int]) -> str:
    count = sum(restarts.values())
    kinds = ", ".join(f"{kind}: {number}" for kind, number in restarts.items())
    return f"{count} restart{'s' * (count != 1)} ({kinds})"


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
