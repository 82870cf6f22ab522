"""The phases of each node over time, for the timeline of the page and the trace."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from ...events.record import Record
from ..history.accounting import Account, Accounting, Phase

GONE: Final = 63
"""Number of the phase in which ft-run does not run."""
_STARTUP: Final = ("importing and building", "joining", "restoring", "first step")
"""Activities of workers before they train, in this order, as named by ``round.progressed``."""
_OTHERS: Final = "other activities"
_WORKERS: Final = frozenset({Phase.BUILDING, Phase.TRAINING})


class PhaseNames:
    """The names of phases, and of the activities that workers report, by their numbers."""

    def __init__(self) -> None:
        self._numbers = {phase.value: number for number, phase in enumerate(Phase)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def number(self, name: str) -> int:
        """Return the number of a name, below ``GONE``; the last one represents all others."""
        if name not in self._numbers and len(self._numbers) >= GONE - 1:
            name = _OTHERS
        return self._numbers.setdefault(name, len(self._numbers))


class Process(Struct):
    """One ft-run process of a node."""

    began_s: float
    """Unix time."""
    seconds: float = 0.0
    run: int = 0
    """The start of the job that it took part in; 0 if it was not in a round."""
    node_rank: int = -1
    """The rank in its last round."""


class Lane(Struct):
    """One node."""

    node: str
    names: PhaseNames
    host: str = ""
    address: str = ""
    machine_id: str = ""
    release: str = ""
    workers: int = 0
    """Number of workers of its last ft-run."""
    failures: int = 0
    """How often one of its workers was the root cause, or the node itself."""
    starts_s: list[float] = field(default_factory=list)
    """Start of each phase, as Unix time."""
    phases: list[int] = field(default_factory=list)
    """Each phase: its number in ``names``, or ``GONE``."""
    processes: list[Process] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    """Where its time went, over all processes."""
    gap: int = GONE
    """The phase between two processes."""
    at_s: float = 0.0
    """The time of its last event."""
    has_started: bool = False
    """Whether the current process has reported ``agent.started``."""
    phase: Phase = Phase.STARTING
    reported: dict[str, float] = field(default_factory=dict)
    """Seconds by phase that its workers have reported in this round."""
    reported_at_s: float = 0.0
    """When they reported, or when the phase of the node started."""

    def add(self, record: Record, at_s: float, run: int, accounting: Accounting) -> None:
        """Process the next event of the node; ``accounting`` already includes it."""
        uptime_s = float(record["uptime_s"])
        is_start = record["name"] == "agent.started"
        if self.is_another(record):
            if self.processes:
                self._enter(self.at_s, self.gap)
            self.processes.append(Process(at_s - uptime_s))
            self._enter(at_s - uptime_s, self.names.number(Phase.STARTING.value))
            self.has_started, self.phase = False, Phase.STARTING
        self.has_started |= is_start
        process, self.at_s = self.processes[-1], max(self.at_s, at_s)
        process.seconds = uptime_s
        if is_start:
            self._about(record)
        elif record["name"] == "round.started":
            process.run, process.node_rank = run, record["node_rank"]
            self.reported = {}
        elif record["name"] == "round.progressed" and record.get("phases"):
            self._split(record["phases"], at_s)
        if accounting.phase is not self.phase:
            self.phase, self.reported_at_s = accounting.phase, at_s
            self._enter(at_s, self.names.number(accounting.phase.value))

    def _split(self, phases: dict[str, float], at_s: float) -> None:
        """Show the activities of the workers since the last report, not the phase of the node."""
        spent = {name: s - self.reported.get(name, 0.0) for name, s in phases.items()}
        since_s, self.reported, self.reported_at_s = self.reported_at_s, phases, at_s
        if self.phase not in _WORKERS or not spent:
            return
        if self.phase is Phase.BUILDING:
            for name in _STARTUP:
                if spent.get(name, 0.0) > 0 and since_s < at_s:
                    self._enter(since_s, self.names.number(name))
                    since_s += spent[name]
            return
        most = max(spent, key=lambda name: spent[name])
        if most != self.phase.value:
            self._enter(since_s, self.names.number(most))
            self._enter(at_s, self.names.number(self.phase.value))

    def is_another(self, record: Record) -> bool:
        """Return whether an event is from a later ft-run than the previous one."""
        is_again = record["name"] == "agent.started" and self.has_started
        return not self.processes or is_again or record["uptime_s"] < self.processes[-1].seconds

    def end(self) -> None:
        """End the lane at its last event."""
        if self.phases:
            self._enter(self.at_s, GONE)

    def _about(self, record: Record) -> None:
        self.host, self.address = record.get("host", ""), record.get("address", "")
        self.machine_id, self.release = record.get("machine_id", ""), record.get("release", "")
        self.workers = record["workers"]

    def _enter(self, at_s: float, phase: int) -> None:
        at_s = max([at_s, *self.starts_s[-1:]])
        if self.starts_s and self.starts_s[-1] == at_s:  # it has no visible duration
            self.starts_s.pop()
            self.phases.pop()
        if not self.phases or self.phases[-1] != phase:
            self.starts_s.append(at_s)
            self.phases.append(phase)


def accountable(lanes: dict[str, Lane]) -> list[tuple[str, int]]:
    """Return node and process number that account for the time of each start of the job, in order.

    It is the lowest rank that ran nearly the whole time, which also shows the closing table.
    """
    of_runs: dict[int, list[tuple[str, int, Process]]] = {}
    for lane in lanes.values():
        for number, process in enumerate(lane.processes):
            of_runs.setdefault(process.run, []).append((lane.node, number, process))
    if len(of_runs) > 1:
        of_runs.pop(0, None)  # spares, and nodes that were rejected
    chosen = []
    for _, candidates in sorted(of_runs.items()):
        longest_s = max(process.seconds for _, _, process in candidates)
        whole = [one for one in candidates if one[2].seconds >= 0.98 * longest_s - 1.0]
        node, number, _ = min(whole, key=lambda one: (one[2].node_rank < 0, one[2].node_rank))
        chosen.append((node, number))
    return chosen
