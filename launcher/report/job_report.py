"""The content of a report: folds over the merged events of all nodes."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct, field

from ...events.record import MASTER, Record
from ..history.accounting import Account, Accounting, Phase, seconds_of
from ..history.answers import FailureNote, JobSummary
from ..history.job_rounds import failure_note, is_same
from ..history.job_summary import JobHistory
from .lanes import Lane, PhaseNames, accountable
from .restarts import RestartParts, RestartTimes

_FAILURES: Final = 500
_OF_A_RESTART: Final = 20
"""Maximum number of failures kept per restart; the others are counted."""
_CHECKPOINTS: Final = 1000
_NOTICES: Final = 300
_RATES: Final = 2000
_OF_CHECKS: Final = frozenset({"node.judged", "node.warned", "checks.ended", "node.rejected"})
_SHOWN_ELSEWHERE: Final = _OF_CHECKS | {
    *("worker.failed", "restart.decided", "checkpoint.failed", "snapshot.unsaved", "job.ended"),
}
_DAMAGED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""Errors that a fold raises for an event with fields of other types than the schema has."""


class Attempt(Struct):
    """One start of the job."""

    number: int
    """The scheduler's count of starts, from 0."""
    began_s: float
    nodes: int = 0
    exit_code: int | None = None
    """None if its end is not in the events."""
    ended: str = ""
    account: Account = field(default_factory=Account)


class FailureEntry(Struct, frozen=True):
    """One failure."""

    run: int
    node: str
    """The node that reported it."""
    is_root: bool
    """Whether it caused a restart, or ended the job."""
    note: FailureNote
    others: int = 0
    """Number of other failures before the same restart, which are not listed."""


class Saved(Struct, frozen=True):
    """A checkpoint, written or failed."""

    at_s: float
    node: str
    step: int
    seconds: float = 0.0
    bytes: int = 0
    path: str = ""
    reason: str = ""
    """Why it failed; empty if it was written."""


class Notice(Struct):
    """An event at WARNING or ERROR, or a result of the checks."""

    at_s: float
    node: str
    severity: str
    text: str
    count: int = 1


class JobReport(Struct):
    """All available data of a job. Times are Unix times in seconds."""

    summary: JobSummary
    lanes: list[Lane]
    """Lanes, by name of the node."""
    attempts: list[Attempt]
    account: Account
    """Since the first start; its ``goodput`` is the effective training time ratio (ETTR)."""
    job_lane: Lane
    names: PhaseNames
    """Names of the phases of all lanes."""
    rates: list[tuple[float, int, float]]
    """Time, step and steps per second of the node that represents the job."""
    restarts: list[RestartParts]
    failures: list[FailureEntry]
    checkpoints: list[Saved]
    checks: list[Notice]
    notices: list[Notice]
    damaged: int
    """Number of events whose fields have other types than the schema has."""

    @property
    def began_s(self) -> float:
        """When the first node started."""
        return min((lane.starts_s[0] for lane in self.lanes if lane.starts_s), default=0.0)


def make_report(
    records: Iterable[Record], again: Callable[[Sequence[str]], Iterator[Record]]
) -> JobReport:
    """Return the report of records in order of time.

    ``again`` yields the records of some nodes once more.
    """
    folds = _Folds()
    for record in records:
        folds.add(record)
    for lane in folds.lanes.values():
        lane.end()
        lane.account = folds.history.account(lane.node).account(of_all=True)
    chosen = accountable(folds.lanes)
    total = _Total(folds.attempts, folds.names)
    for record in again([node for node, _ in chosen]):
        total.add(record, chosen)
    total.end()
    total.lane.end()
    for entry in folds.failures.entries:
        if entry.is_root and entry.node in folds.lanes:
            folds.lanes[entry.node].failures += 1
    return JobReport(
        summary=folds.history.summary(),
        lanes=sorted(folds.lanes.values(), key=lambda lane: _natural(lane.node)),
        attempts=list(folds.attempts.values()),
        account=total.accounting.account(of_all=True),
        job_lane=total.lane,
        names=folds.names,
        rates=total.rates[:: -(-len(total.rates) // _RATES) or 1],
        restarts=folds.times.restarts,
        failures=folds.failures.entries,
        checkpoints=folds.checkpoints[-_CHECKPOINTS:],
        checks=folds.checks[-_NOTICES:],
        notices=list(folds.notices.values()),
        damaged=folds.damaged,
    )


class _Folds:
    """The first pass, over the events of all nodes."""

    def __init__(self) -> None:
        self.history = JobHistory()
        self.times = RestartTimes()
        self.failures = _Failures()
        self.lanes: dict[str, Lane] = {}
        self.names = PhaseNames()
        self.attempts: dict[int, Attempt] = {}
        self.checkpoints: list[Saved] = []
        self.checks: list[Notice] = []
        self.notices: dict[tuple[str, str], Notice] = {}
        self.damaged = 0

    def add(self, record: Record) -> None:
        try:
            self._add(record)
        except _DAMAGED:
            self.damaged += 1

    def _add(self, record: Record) -> None:
        self.history.add(record)
        at_s, run, node = seconds_of(record["time"]), self.history.run, record["node"]
        if node != MASTER:
            accounting = self.history.account(node)
            lane = self.lanes.get(node)
            if lane is None:
                lane = self.lanes[node] = Lane(node, self.names)
            lane.add(record, at_s, run, accounting)
            self.times.add(record, at_s, run, accounting)
        self.failures.add(record, at_s, run)
        self._attempt(record, run)
        if record["name"] in ("checkpoint.written", "checkpoint.failed", "snapshot.unsaved"):
            keys = ("step", "seconds", "bytes", "path", "reason")
            known = {key: record[key] for key in keys if key in record}
            self.checkpoints.append(Saved(at_s, node, **known))
        elif record["name"] in _OF_CHECKS:
            self.checks.append(Notice(at_s, node, record["severity"], record["text"]))
        elif record["severity"] in ("warning", "error") and record["name"] not in _SHOWN_ELSEWHERE:
            self._notice(record, at_s)

    def _attempt(self, record: Record, run: int) -> None:
        if record["name"] == "round.started":
            attempt = self.attempts.get(run)
            if attempt is None:
                began_s = self.lanes[record["node"]].processes[-1].began_s
                attempt = self.attempts[run] = Attempt(record["attempt"], began_s)
            attempt.nodes = record["nodes"]
        elif record["name"] == "job.ended" and run in self.attempts:
            verdict, attempt = record["verdict"], self.attempts[run]
            attempt.exit_code, attempt.ended = verdict["exit_code"], verdict["sentence"]

    def _notice(self, record: Record, at_s: float) -> None:
        key = record["name"], record["text"]
        if key in self.notices:
            self.notices[key].count += 1
        elif len(self.notices) < _NOTICES:
            text = record["text"]
            self.notices[key] = Notice(at_s, record["node"], record["severity"], text)


class _Failures:
    """Failures of all nodes, and which of them were root causes."""

    def __init__(self) -> None:
        self.entries: list[FailureEntry] = []
        self._since: list[FailureEntry] = []
        """Failures since the last restart."""
        self._more = 0
        self._last = 0, -1
        self._lost = ""
        """The node that the master lost last."""

    def add(self, record: Record, at_s: float, run: int) -> None:
        match record["name"]:
            case "node.lost":
                self._lost = record["node_id"]
            case "worker.failed":
                note = failure_note(record["failure"], record["round"], at_s)
                self._since.append(FailureEntry(run, record["node"], False, note))
                self._more += len(self._since) > _OF_A_RESTART
                del self._since[_OF_A_RESTART:]
            case "restart.decided" if (run, record["round"]) > self._last:
                self._last = run, record["round"]
                self._decided(record["cause"], record, at_s, run)
            case "job.ended" if record["verdict"]["cause"] and self._last < (run, 1 << 60):
                self._last = run, 1 << 60
                self._decided(record["verdict"]["cause"], record, at_s, run)

    def _decided(self, found: Any, record: Record, at_s: float, run: int) -> None:
        cause = failure_note(found, record["round"], at_s)
        same = next((one for one in self._since if is_same(one.note, cause)), None)
        rest = [one for one in self._since if one is not same]
        note = same.note if same is not None else cause
        node = same.node if same is not None else self._lost * (cause.kind == "node_lost")
        self.entries.append(FailureEntry(run, node, True, note, self._more))
        self.entries += rest
        del self.entries[:-_FAILURES]
        self._since, self._more = [], 0


class _Total:
    """The second pass: where the time of the job went, from one process per start."""

    def __init__(self, attempts: dict[int, Attempt], names: PhaseNames) -> None:
        self.accounting = Accounting()
        self.lane = Lane("job", names, gap=names.number(Phase.ENDED.value))
        self.rates: list[tuple[float, int, float]] = []
        self._attempts = [attempts[run] for run in sorted(attempts)]
        self._counts: dict[str, Lane] = {}
        self._at = -1
        self._is_closed = False
        """Whether the process has shown its closing table, with which this must agree."""

    def add(self, record: Record, chosen: Sequence[tuple[str, int]]) -> None:
        node, at_s = record["node"], seconds_of(record["time"])
        count = self._counts.setdefault(node, Lane(node, PhaseNames()))
        try:
            count.add(record, at_s, 0, self.accounting)
            key = node, len(count.processes) - 1
            if key in chosen:
                self._add(record, at_s, chosen.index(key))
        except _DAMAGED:
            return  # counted in the first pass

    def _add(self, record: Record, at_s: float, number: int) -> None:
        if number != self._at:
            self.end()
            self._at, self._is_closed = number, False
        if self._is_closed:
            return
        self._is_closed = record["name"] == "time.accounted"
        self.accounting.add(record)
        self.lane.add(record, at_s, 0, self.accounting)
        if record["name"] == "round.progressed" and record["steps_per_s"] > 0:
            self.rates.append((at_s, record["steps"], record["steps_per_s"]))

    def end(self) -> None:
        if 0 <= self._at < len(self._attempts):
            self._attempts[self._at].account = self.accounting.account()


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that places gpu-9 before gpu-10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if number % 2 else (-1, part) for number, part in enumerate(parts)]
