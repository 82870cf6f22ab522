"""Rounds, steps, restarts and failures of a job: parts of ``job_summary``."""

import math
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from ...events.record import Record
from ...rendezvous.protocol.failure import Failure, FailureKind
from ..history.recorded_error import recorded, recorded_traceback
from .accounting import Phase
from .answers import FailureNote, Restart, Restarts, Training
from .overlaps import MINUTE_S, BestHour
from .steps import is_late

_DATA_WAIT_MIN_S: Final = 20.0
"""Minimum training time between two reports for a meaningful share."""
_LINES: Final = 20
_LINE: Final = 500
"""Maximum number of characters."""
_SKEW_S: Final = 60.0
"""Maximum difference between the clocks of hosts."""
_BEGINS_ROUND: Final = frozenset({"restart.decided", "regroup.decided", "round.started"})
_KINDS: Final = frozenset(kind.name.lower() for kind in FailureKind)


class RoundFold:
    """The current round, and the known node with the lowest rank in it."""

    def __init__(self) -> None:
        self.run, self.number = 0, -1
        self.nodes = self.world_size = 0
        self.lead = ""
        self._lead_rank = 0
        self._attempt, self._began_s = 0, 0.0
        self._last: dict[str, int] = {}
        """The last round of each node in this run."""
        self._is_restarted: dict[str, bool] = {}
        """Whether each node's agent has started since then."""

    def add(self, record: Record, at_s: float) -> None:
        """Process the next event; ``at_s`` is its Unix time."""
        name, node = record["name"], record["node"]
        if name == "agent.started":
            self._is_restarted[node] = True
        if name not in _BEGINS_ROUND:
            return
        number, rank = record["round"], record["node_rank"]
        is_again = self._is_again(record, at_s)
        if is_again:
            self._last.clear()
        self._last[node], self._is_restarted[node] = number, False
        if is_again or number > self.number:
            self.run += is_again or not self.run
            self.number, self.lead, self._lead_rank = number, node, rank
            self._attempt, self._began_s = record["attempt"], at_s
        elif number == self.number and rank < self._lead_rank:
            self.lead, self._lead_rank = node, rank
        if name == "round.started" and number == self.number:
            self.nodes, self.world_size = record["nodes"], record["world_size"]

    def _is_again(self, record: Record, at_s: float) -> bool:
        """Return whether the job was started again: round numbers do not repeat."""
        node, number, attempt = record["node"], int(record["round"]), int(record["attempt"])
        if not self.run or attempt != self._attempt:
            return bool(self.run) and attempt > self._attempt
        if number > self.number or not self._is_restarted.get(node, False):
            return False
        if node in self._last:
            return number <= self._last[node]
        return at_s - self._began_s > _SKEW_S


class StepFold:
    """Steps of the node with the lowest rank, and their rate."""

    def __init__(self) -> None:
        self._step = -1
        self._at_s: float | None = None
        self._rate: float | None = None
        self._data_wait: float | None = None
        self._waited_s = self._training_s = 0.0
        """Times in this round, as of the last report used for ``data_wait``."""
        self._hours: dict[int, BestHour] = {}
        """Best hours by number of workers."""
        self._rated_at_s = -math.inf
        """Time of the last rate added to them: metrics scrapes cause additional reports."""

    def add(self, record: Record, at_s: float, world_size: int) -> None:
        """Process the next event of that node; ``world_size`` belongs to the round."""
        match record["name"]:
            case "round.started":
                self._rate = self._data_wait = None
                self._waited_s = self._training_s = 0.0
            case "round.progressed":
                self._progressed(record, at_s, world_size)
            case "round.ended":
                self._done(record["steps"], self._at_s)

    def _done(self, step: int, at_s: float | None) -> None:
        self._step, self._at_s = step if step >= 0 else self._step, at_s

    def _progressed(self, record: Record, at_s: float, world_size: int) -> None:
        rate, idle_s = record["steps_per_s"], record["idle_s"]
        if not rate and not idle_s:
            return  # unwatched, or no step yet
        self._done(record["steps"], at_s - idle_s)
        self._waits(record)
        self._rate = 0.0 if is_late(rate, idle_s) else rate
        if self._rate and at_s - self._rated_at_s >= MINUTE_S:
            self._rated_at_s = at_s
            self._hours.setdefault(world_size, BestHour()).add(1 / rate, record.get("reports", 1))

    def _waits(self, record: Record) -> None:
        """Process how long workers have waited for data; the longest wait of a rank counts."""
        waited_s = max(record.get("data_wait_s", ()), default=None)
        training_s = record.get("phases", {}).get(Phase.TRAINING.value, 0.0)
        more_s = training_s - self._training_s
        if waited_s is None or more_s < _DATA_WAIT_MIN_S:
            return
        self._data_wait = min(1.0, max(0.0, waited_s - self._waited_s) / more_s)
        self._waited_s, self._training_s = waited_s, training_s

    def training(self, phase: Phase, world_size: int, *, has_ended: bool) -> Training:
        """Return the answers, for the phase of that node."""
        is_training = phase is Phase.TRAINING and not has_ended and self._rate != 0.0
        hours, rate = self._hours.get(world_size), self._rate
        best = 1 / hours.step_s if hours is not None and hours.step_s else None
        return Training(
            phase.value,
            is_training,
            self._step,
            self._at_s,
            rate,
            best,
            best / rate if best and rate else None,
            self._data_wait,
        )


class RestartFold:
    """Restarts (counted once, although every node reports them) and failures since the last one."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._last = 0, -1
        """Run and round of the last restart."""
        self._started = 0, -1
        """Run and round of the last start."""
        self.restarts = Restarts()

    def add(self, record: Record, at_s: float, run: int) -> None:
        """Process the next event; ``run`` is the start of the job to which it belongs."""
        failures = self.restarts.failures
        match record["name"]:
            case "restart.decided" if (run, record["round"]) > self._last:
                self._last = run, record["round"]
                self._restarted(record, at_s)
                failures = ()
            case "round.started" if (run, record["round"]) > self._started:
                self._started = run, record["round"]
                failures = ()
            case "worker.failed" if not record["failure"].get("after_stop"):
                note = failure_note(record["failure"], record["round"], at_s)
                failures = (*failures, note)[: self._kept]
            case "job.ended" if record["verdict"]["cause"] is not None:
                cause = failure_note(record["verdict"]["cause"], record["round"], at_s)
                failures = (cause, *(one for one in failures if not is_same(one, cause)))
        if failures is not self.restarts.failures:
            self.restarts = replace(self.restarts, failures=failures)

    def _restarted(self, record: Record, at_s: float) -> None:
        before = self.restarts
        cause = failure_note(record["cause"], record["round"], at_s)
        last = Restart(record["round"], at_s, cause, record["decision"], record["is_free"])
        self.restarts = Restarts(
            before.count + 1,
            before.by_kind | {cause.kind: before.by_kind.get(cause.kind, 0) + 1},
            record["restarts_used"],
            record["max_restarts"],
            (*before.last, last)[-self._kept :],
        )


def failure_note(found: Mapping[str, Any], round_: int, at_s: float) -> FailureNote:
    """Return the note of a failure in a record; unknown fields of ``Failure`` are ignored."""
    known = {name: found[name] for name in Failure.__struct_fields__ if name in found}
    kind = found["kind"] if found["kind"] in _KINDS else "worker"
    failure = Failure(**known | {"kind": FailureKind[kind.upper()]})
    error = recorded(failure)
    message = recorded_traceback(error) if error is not None else failure.message
    tail = failure.stderr_tail.strip() or message.strip()
    lines = tuple(line[:_LINE] for line in tail.splitlines()[-_LINES:])
    return FailureNote(
        round_,
        at_s,
        found["kind"],
        failure.rank,
        failure.node_rank,
        failure.host,
        failure.summary(),
        lines,
    )


def is_same(one: FailureNote, other: FailureNote) -> bool:
    """Return whether two notes are of one failure."""
    return (one.kind, one.rank, one.host) == (other.kind, other.rank, other.host)
