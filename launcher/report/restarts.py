"""The parts of each restart: detection, the phases until the first step, redone steps.

They are taken from the node with the lowest rank that was in both rounds. Its phases come from
``Accounting``. Only detection compares the clocks of two hosts.
"""

from typing import Final

from msgspec import Struct, field

from ...events.record import Record
from ..history.accounting import Accounting, Phase
from ..history.job_rounds import failure_note
from ..history.phases import Spent
from ..reporting.time_report import named

REGROUP: Final = "regroup"
"""The kind of a restart because nodes have joined or left."""
_ORDER: Final = (Phase.HANGING, Phase.DRAINING, Phase.STOPPING, *Phase)


class RestartParts(Struct):
    """One restart. Durations are in seconds; None if unknown, or not finished."""

    run: int
    round: int
    """The round that it started."""
    at_s: float
    """When it was decided, as Unix time."""
    kind: str
    """Kind of failure, as in a record of ``Failure``, or ``REGROUP``."""
    cause: str
    rule: str = ""
    """The decision of the failure policy; empty for the default rule."""
    is_free: bool = False
    """Whether it does not count toward the limit."""
    began_s: float = 0.0
    """When something failed, or if unknown, when training ended, as Unix time."""
    detect_s: float | None = None
    """From the failure to the end of training."""
    phases: dict[str, float] = field(default_factory=dict)
    """From there to the first step (or the start of workers that are not watched), or to the next
    failure, by phase or activity, in the usual order."""
    is_over: bool = False
    """Whether the job has trained again (or workers that are not watched have started)."""
    redo_s: float = 0.0
    """Training that is repeated."""
    redo_steps: int | None = None

    @property
    def seconds(self) -> float:
        """Its time so far, without repeated training."""
        return (self.detect_s or 0.0) + sum(self.phases.values())

    @property
    def down_s(self) -> float | None:
        """The time from the failure to the first step; None if there was none."""
        return self.seconds if self.is_over else None


class _Times(Struct):
    """Values of a node in a round."""

    rank: int = -1
    lost_before_s: float = 0.0
    """Training lost in all previous restarts."""
    steps_before: int = -1
    resumes_from: int = -1
    has_ended: bool = False
    steps: int = -1


class RestartTimes:
    """Folds records, which ``add`` receives in order of time."""

    def __init__(self) -> None:
        self.restarts: list[RestartParts] = []
        self._last = 0, -1
        """Run and round of the last restart."""
        self._round = 0, -1
        """Run and round of the last start of a round."""
        self._signs: dict[str, float] = {}
        """The first sign of a failure since the last restart, by its kind."""
        self._failed_at_s: float | None = None
        """Time of the failure of the last restart."""
        self._nodes: dict[str, _Times] = {}
        """The current or last round of each node."""
        self._best = ""
        """The node that provides the times of the last restart; empty if none yet."""

    def add(self, record: Record, at_s: float, run: int, accounting: Accounting) -> None:
        """Process the next event; ``run`` is its start of the job; ``accounting`` includes it."""
        node = record["node"]
        match record["name"]:
            case "agent.started":
                self._nodes.pop(node, None)
                self._best = "" if node == self._best else self._best
            case "restart.decided" | "regroup.decided":
                self._decided(record, at_s, run)
                self._begins(record, at_s, accounting)
            case "round.started" if (run, record["round"]) > self._round:
                self._round, self._signs = (run, record["round"]), {}
            case "round.ended":
                times = self._nodes.setdefault(node, _Times())
                times.has_ended, times.steps = True, record["steps"]
            case "worker.failed" | "worker.exited" if record["round"] >= self._round[1]:
                # Exits of an earlier round can appear here, because clocks differ.
                if record["name"] == "worker.failed" or (
                    record["exit_code"] and not record["after_stop"]
                ):
                    self._signs.setdefault("worker", at_s)
            case "hang.suspected":
                self._signs.setdefault("hang", at_s - record["idle_s"])
            case "node.disconnected":
                self._signs["node_lost"] = at_s
        if node == self._best and not self.restarts[-1].is_over:
            self._goes_on(record, accounting)

    def _decided(self, record: Record, at_s: float, run: int) -> None:
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
        parts.began_s = at_s
        self.restarts.append(parts)

    def _begins(self, record: Record, at_s: float, accounting: Accounting) -> None:
        """Handle the start of a restart on a node: the node with the lowest rank counts."""
        node, rank = record["node"], record["node_rank"]
        was = self._nodes.get(node)
        self._nodes[node] = times = _Times(rank)
        if was is None or not was.has_ended:
            return  # it was not in the previous round
        times.steps_before, times.lost_before_s = was.steps, accounting.lost_s
        if self._best and self._nodes[self._best].rank <= rank:
            return
        self._best, parts = node, self.restarts[-1]
        parts.began_s = at_s - sum(accounting.restart.values())
        if self._failed_at_s is not None:
            parts.detect_s = max(0.0, parts.began_s - self._failed_at_s)
            parts.began_s -= parts.detect_s

    def _goes_on(self, record: Record, accounting: Accounting) -> None:
        """Update the restart with an event of the best node."""
        times, parts = self._nodes[self._best], self.restarts[-1]
        spent = sorted(accounting.restart.items(), key=lambda part: _place(part[0]))
        parts.phases, parts.is_over = named(dict(spent)), accounting.is_restart_over
        if record["name"] == "round.started":
            times.resumes_from = record["resumes_from"]
        elif record["name"] == "training.started":
            parts.redo_s = accounting.lost_s - times.lost_before_s
            resumed = times.resumes_from if times.resumes_from >= 0 else record["step"] - 1
            if times.steps_before >= 0 and resumed >= 0:
                parts.redo_steps = max(0, times.steps_before - resumed)


def _place(spent: Spent) -> int:
    """Return the position of a phase in the usual order; activities are last."""
    return _ORDER.index(spent) if isinstance(spent, Phase) else len(_ORDER)
