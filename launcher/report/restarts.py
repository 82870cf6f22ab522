"""The parts of each restart: detect, stop, form, start, restore, redo. A fold over records.

All parts but the first are of one node, that with the lowest rank that was in both rounds, by its
own clock. The first compares the clocks of two hosts.
"""

from typing import Final

from ...events.record import Record
from ...values import dataclass, field
from ..history.accounting import Accounting
from ..history.job_rounds import failure_note

REGROUP: Final = "regroup"
"""The kind of a restart because nodes have joined or left."""


@dataclass(slots=True)
class RestartParts:
    """One restart. Durations in seconds; None: not known, or not over."""

    run: int
    round: int
    """The round that it began."""
    at_s: float
    """When it was decided, as Unix time."""
    kind: str
    """Of the failure, as ``Failure`` has it in a record, or ``REGROUP``."""
    cause: str
    rule: str = ""
    """The decision of the failure policy; empty: the default rule."""
    is_free: bool = False
    """It is not counted."""
    detect_s: float | None = None
    """From the failure to the stop of the workers."""
    stop_s: float | None = None
    """Until no worker is left."""
    form_s: float | None = None
    """Until the next round has formed."""
    start_s: float | None = None
    """Until the workers have started."""
    restore_s: float | None = None
    """Until the first step is done: imports, restore, compilation."""
    building: dict[str, float] = field(default_factory=dict)
    """Of ``restore_s``, the seconds by what the workers did, if they report it."""
    redo_s: float = 0.0
    """Training that is done again."""
    redo_steps: int | None = None
    """Steps that are done again."""

    @property
    def down_s(self) -> float | None:
        """Return the time from the failure to the first step, or the start of the workers."""
        parts = (self.detect_s, self.stop_s, self.form_s, self.start_s, self.restore_s)
        known = [part for part in parts if part is not None]
        return sum(known) if self.start_s is not None else None


@dataclass(slots=True)
class _Times:
    """What a node did in a round, by its own clock in seconds."""

    rank: int = -1
    ended_before_s: float = 0.0
    """When no worker of the round before was left."""
    lost_before_s: float = 0.0
    """Training that was lost in all restarts before."""
    steps_before: int = -1
    started_s: float | None = None
    spawned_s: float | None = None
    resumes_from: int = -1
    stop_at_s: float | None = None
    """As Unix time."""
    stop_s: float | None = None
    ended_s: float | None = None
    steps: int = -1
    phases: dict[str, float] = field(default_factory=dict)
    """What its workers have reported last."""


class RestartTimes:
    """The fold; ``add`` records in order of time."""

    def __init__(self) -> None:
        """Start before the first event."""
        self.restarts: list[RestartParts] = []
        self._last = 0, -1
        """The run and the round of the last restart."""
        self._round = 0, -1
        """The run and the round that has started last."""
        self._signs: dict[str, float] = {}
        """The first sign of a failure since the last restart, by its kind."""
        self._failed_at_s: float | None = None
        """Of the last restart."""
        self._nodes: dict[str, _Times] = {}
        """The current or last round of each node."""
        self._best = ""
        """The node whose times are those of the last restart; empty: none yet."""

    def add(self, record: Record, at_s: float, run: int, accounting: Accounting) -> None:
        """Take the next event.

        Args:
            record: the event.
            at_s: its Unix time.
            run: the start of the job that it belongs to.
            accounting: of its node, up to the event.
        """
        node, now_s = record["node"], float(record["uptime_s"])
        match record["name"]:
            case "agent.started":
                self._nodes.pop(node, None)
            case "restart.decided" | "regroup.decided":
                self._decided(record, at_s, run)
                self._begins(record, accounting)
            case "round.started" | "workers.started" | "training.started":
                self._goes_on(record, now_s, run, accounting)
            case "round.progressed" if record.get("phases"):
                self._nodes.setdefault(node, _Times()).phases = record["phases"]
            case "round.ended":
                times = self._nodes.setdefault(node, _Times())
                times.ended_s, times.steps = now_s, record["steps"]
            case "workers.stopping" | "worker.failed" | "worker.exited":
                self._fails(record, at_s, now_s)
            case "hang.suspected":
                self._signs.setdefault("hang", at_s - record["idle_s"])
            case "node.disconnected":
                self._signs["node_lost"] = at_s

    def _fails(self, record: Record, at_s: float, now_s: float) -> None:
        times, name = self._nodes.setdefault(record["node"], _Times()), record["name"]
        if record["round"] < self._round[1]:
            return  # late, because clocks differ
        is_exit = name == "worker.exited"
        if name == "worker.failed" or (
            is_exit and record["exit_code"] and not record["after_stop"]
        ):
            self._signs.setdefault("worker", at_s)
        if not is_exit and times.stop_s is None:
            times.stop_at_s, times.stop_s = at_s, now_s

    def _decided(self, record: Record, at_s: float, run: int) -> None:
        """Begin a restart when its first node reports it."""
        if (run, record["round"]) <= self._last:
            return
        self._last = run, record["round"]
        self._best, signs, self._signs = "", self._signs, {}
        if record["name"] == "regroup.decided":
            self._failed_at_s = None
            parts = RestartParts(run, record["round"], at_s, REGROUP, record["reason"])
        else:
            cause = failure_note(record["cause"], record["round"], at_s)
            self._failed_at_s = signs.get(cause.kind, signs.get("worker"))
            rule, is_free = record["decision"], record["is_free"]
            parts = RestartParts(
                run, record["round"], at_s, cause.kind, cause.summary, rule, is_free
            )
        self.restarts.append(parts)

    def _begins(self, record: Record, accounting: Accounting) -> None:
        """A node has left its last round: the one with the lowest rank counts."""
        node, rank = record["node"], record["node_rank"]
        was = self._nodes.get(node)
        self._nodes[node] = times = _Times(rank)
        if was is None or was.ended_s is None:
            return  # it was not in the round before
        times.ended_before_s, times.steps_before = was.ended_s, was.steps
        times.lost_before_s = accounting.lost_s
        if self._best and self._nodes[self._best].rank <= rank:
            return
        self._best, parts = node, self.restarts[-1]
        if was.stop_s is not None and was.stop_at_s is not None:
            parts.stop_s = max(0.0, was.ended_s - was.stop_s)
            if self._failed_at_s is not None:
                parts.detect_s = max(0.0, was.stop_at_s - self._failed_at_s)

    def _goes_on(self, record: Record, now_s: float, run: int, accounting: Accounting) -> None:
        node, name = record["node"], record["name"]
        if name == "round.started" and (run, record["round"]) > self._round:
            self._round, self._signs = (run, record["round"]), {}
        if node != self._best or record["round"] != self._last[1]:
            return
        times, parts = self._nodes[node], self.restarts[-1]
        if name == "round.started":
            times.started_s, times.resumes_from = now_s, record["resumes_from"]
            parts.form_s = now_s - times.ended_before_s
        elif name == "workers.started" and times.started_s is not None:
            times.spawned_s = now_s
            parts.start_s = now_s - times.started_s
        elif name == "training.started" and times.spawned_s is not None:
            parts.restore_s = now_s - times.spawned_s
            parts.redo_s = accounting.lost_s - times.lost_before_s
            parts.building = dict(times.phases)
            resumed = times.resumes_from if times.resumes_from >= 0 else record["step"] - 1
            if times.steps_before >= 0 and resumed >= 0:
                parts.redo_steps = max(0, times.steps_before - resumed)
