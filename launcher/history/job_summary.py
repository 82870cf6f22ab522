"""Answers for the person on call about a job: a fold over its events. No I/O, no clock.

The events are from one or several nodes, merged by time, from one or several consecutive runs of
``ft-run`` on each node. Connected nodes are known only with events of the master's node. The values
are in ``answers``.
"""

from typing import Final

from msgspec.structs import replace

from ...events.record import MASTER, Record
from .accounting import Accounting, Phase, seconds_of
from .advice import Measures, advice
from .answers import Checkpoint, JobSummary, Nodes, Saves
from .job_rounds import RestartFold, RoundFold, StepFold

_KEPT: Final = 20
_XIDS: Final = 20


class JobHistory:
    """The fold; ``add`` records in order of time."""

    def __init__(self, kept: int = _KEPT) -> None:
        """``kept`` is the maximum number of restarts and failures in a summary."""
        self._job, self._attempt = "", 0
        self._started_at_s: float | None = None
        self._at_s: float | None = None
        self._end: tuple[int | None, str] = None, ""
        self._accounts: dict[str, Accounting] = {}
        self._rounds = RoundFold()
        self._steps, self._saves = StepFold(), _SaveFold()
        self._restarts, self._nodes = RestartFold(kept), _NodeFold()
        self._measures = Measures()

    @property
    def run(self) -> int:
        """The start of the job that the last event belongs to, from 1; 0 before the first round."""
        return self._rounds.run

    def add(self, record: Record) -> None:
        """Process the next event."""
        at_s, name = seconds_of(record["time"]), record["name"]
        if self._started_at_s is None:
            self._started_at_s = at_s - record["uptime_s"]
        self._at_s, self._attempt = at_s, record["attempt"]
        self._job = record["job"] or self._job  # ft-run master has no job before its first node
        if name == "job.ended":
            self._end = record["verdict"]["exit_code"], record["verdict"]["sentence"]
        elif name == "agent.started":
            self._end = None, ""
        if record["node"] != MASTER:
            self.account(record["node"]).add(record)
        self._rounds.add(record, at_s)
        if record["node"] == self._rounds.lead:
            self._steps.add(record, at_s, self._rounds.world_size)
            self._saves.progressed(record, at_s)
            self._measures.add(record)
        self._saves.add(record, at_s)
        self._restarts.add(record, at_s, self._rounds.run)
        self._nodes.add(record, self._rounds.run)

    def renamed(self, before: str, node: str) -> None:
        """Move the state of a node to the new ID that the master assigned to it."""
        self._accounts[node] = self._accounts.pop(before, Accounting())

    def account(self, node: str) -> Accounting:
        """Return where the time of a node went."""
        return self._accounts.setdefault(node, Accounting())

    def summary(self) -> JobSummary:
        """Return the answers as of the last event."""
        exit_code, ended = self._end
        lead = self._accounts.get(self._rounds.lead)
        phase = lead.phase if lead is not None else Phase.STARTING
        if lead is None and self._accounts:
            phase = next(iter(self._accounts.values())).phase
        spares = sum(one.phase is Phase.STANDING_BY for one in self._accounts.values())
        return JobSummary(
            self._job,
            self._attempt,
            self._rounds.run,
            self._started_at_s,
            self._at_s,
            exit_code,
            ended,
            self._steps.training(phase, self._rounds.world_size, has_ended=exit_code is not None),
            self._saves.saves,
            self._restarts.restarts,
            self._nodes.nodes(self._rounds.nodes, spares),
            measured := self._measures.measured,
            advice(measured) if measured is not None else (),
        )


class _SaveFold:
    """Checkpoints of all nodes, snapshots of the node with the lowest rank."""

    def __init__(self) -> None:
        self.saves = Saves()

    def add(self, record: Record, at_s: float) -> None:
        saves = self.saves
        match record["name"]:
            case "checkpoint.written":
                written = Checkpoint(
                    record["step"], at_s, record["seconds"], record["bytes"], record["path"]
                )
                self.saves = replace(saves, checkpoint=written, failed=0)
            case "checkpoint.failed" | "snapshot.unsaved":
                self.saves = replace(
                    saves,
                    failed=saves.failed + 1,
                    failed_in_all=saves.failed_in_all + 1,
                    reason=record["reason"],
                )

    def progressed(self, record: Record, at_s: float) -> None:
        if record["name"] != "round.progressed":
            return
        step, replica = record.get("snapshot", -1), record.get("replica", -1)
        if step != self.saves.snapshot_step:
            seen_at_s = at_s if step >= 0 else None
            self.saves = replace(self.saves, snapshot_step=step, snapshot_at_s=seen_at_s)
        lag = max(0, step - replica) if step >= 0 and replica >= 0 else None
        if lag != self.saves.replica_lag:
            self.saves = replace(self.saves, replica_lag=lag)


class _NodeFold:
    """Connected nodes, from the events of the master or, without them, of the nodes."""

    def __init__(self) -> None:
        self._run = 0
        self._wanted: tuple[int | None, int | None] = None, None
        self._begin()

    def _begin(self) -> None:
        self._connected: set[str] | None = None
        self._lost: dict[str, str] = {}
        """Hosts by identity; by host without events of the master."""
        self._excluded: dict[str, None] = {}
        self._missing: tuple[str, ...] = ()
        self._xids: dict[str, None] = {}

    def add(self, record: Record, run: int) -> None:
        if run != self._run and self._run:
            self._begin()
        self._run = run
        match record["name"]:
            case "node.joined":
                self._connected = self._connected or set()
                self._connected.add(record["node_id"])
                self._is_back(record["node_id"], record.get("host", ""))
            case "node.leaving" | "node.lost" | "node.excluded" | "node.rejected":
                self._gone(record["name"], record["node_id"])
            case "agent.started":
                self._is_back(record["node_id"], record.get("host", ""))
            case "agent.waiting":
                waiting = record["waiting"]
                self._wanted = waiting["min_nodes"], waiting["max_nodes"]
                if not waiting["spare"]:
                    self._missing = tuple(waiting["missing"])
            case "gpu.xid" if len(self._xids) < _XIDS:
                self._xids[f"{record['node']} GPU {record['gpu']} Xid {record['xid']}"] = None
            case "round.started":
                self._missing = ()
            case "restart.decided" if record["cause"]["kind"] == "node_lost":
                if self._connected is None:
                    host = record["cause"]["host"]
                    self._lost[host] = host

    def _is_back(self, node: str, host: str) -> None:
        self._lost = {
            one: at for one, at in self._lost.items() if one != node and (one != at or at != host)
        }

    def _gone(self, name: str, node: str) -> None:
        if self._connected is not None:
            self._connected.discard(node)
        if name == "node.lost":
            self._lost[node] = ""
        elif name != "node.leaving":
            self._excluded[node] = None

    def nodes(self, in_round: int, standing_by: int) -> Nodes:
        connected = self._connected
        spares = standing_by or None
        if connected is not None and in_round:
            spares = max(0, len(connected) - in_round)
        return Nodes(
            *self._wanted,
            in_round,
            None if connected is None else tuple(sorted(connected)),
            spares,
            self._missing,
            tuple(self._lost),
            tuple(self._excluded),
            tuple(self._xids),
        )
