"""Events of this node: how it joins, waits and leaves, its connection to the master, its end."""

import enum
from collections.abc import Mapping

from ..rendezvous.protocol.messages import Outcome, Verdict, Waiting
from .event import Event, Severity

_RESTART_DELAY = "delay between consecutive restarts"


def nodes_wanted(min_nodes: int, max_nodes: int) -> str:
    """Return ``4`` or ``2:5``, as ``--nnodes`` has it."""
    return str(min_nodes) if min_nodes == max_nodes else f"{min_nodes}:{max_nodes}"


def _and_leaves(workers: int) -> str:
    return f"stopping {workers} worker(s) and leaving the job" if workers else "leaving the job"


def _duration(seconds: float) -> str:
    """Return ``9 min 40 s``, ``10 min`` or ``55 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return " ".join([f"{minutes} min"] * bool(minutes) + [f"{rest} s"] * bool(rest or not minutes))


class NodeStarted(Event, frozen=True):
    """An agent has started; ``source`` is where the number of workers comes from."""

    job_id: str
    node_id: str
    workers: int
    source: str
    master: str
    host: str = ""
    address: str = ""
    machine_id: str = ""
    """The machine's ``/etc/machine-id``; empty: it has none."""
    release: str = ""
    """The version of ft-run."""

    name = "agent.started"
    line = "job={job_id} node_id={node_id} nproc_per_node={workers} ({source}), {master}"


class ThisNodeRenamed(Event, frozen=True):
    """Another node with the same ID was connected: the master has assigned a new ID."""

    proposed: str
    given: str

    name = "agent.renamed"

    def __str__(self) -> str:
        host = self.proposed.rpartition("/")[0]
        return f"duplicate host name {host}: this node is {self.given}"


class ForeignAddressAdvertised(Event, frozen=True):
    """The address of ``--local-addr`` is not an address of this host."""

    address: str

    name = "agent.foreign_address"
    severity = Severity.WARNING
    line = (
        "--local-addr {address} is not an address of this host: workers of other nodes connect to "
        "it anyway (correct only behind NAT)"
    )


class NodeWaits(Event, frozen=True):
    """This node waits for a round, or stands by as a spare."""

    waiting: Waiting
    is_backoff_given: bool
    """Whether the delay is that of ``--restart-backoff``."""
    has_successors: bool = False
    """Whether there are several master hosts: a new leader waits too."""

    name = "agent.waiting"

    def __str__(self) -> str:
        waiting = self.waiting
        if waiting.spare:
            return f"standing by as a spare ({waiting.joined} nodes connected, job is running)"
        if waiting.backoff_s:
            why = "--restart-backoff" if self.is_backoff_given else _RESTART_DELAY
            if self.has_successors:
                why = f"workers of an earlier leader may still run, or {_RESTART_DELAY}"
            return f"next round starts in {waiting.backoff_s:.0f} s ({why})"
        wanted = nodes_wanted(waiting.min_nodes, waiting.max_nodes)
        missing = f"; missing: {', '.join(waiting.missing)}" if waiting.missing else ""
        return (
            f"waiting for nodes: {waiting.joined} of {wanted} connected{missing} "
            f"(gives up in {_duration(waiting.timeout_s)})"
        )


# --- the connection to the master ------------------------------------------------------------


class MasterConnected(Event, frozen=True):
    """This node is connected to the master; ``is_again``: reconnected."""

    is_again: bool

    name = "master.connected"

    def __str__(self) -> str:
        return "reconnected to the master" if self.is_again else "connected to the master"


class WorkersAlone(enum.Enum):
    """State of the workers of a node without a connection to the master; see ``ClaimState``."""

    NONE = ""
    RUNNING = "workers keep running; "
    DONE = "workers finished; "
    FAILED = "worker failed; the restart waits for the master; "
    STOPPED = "workers stopped; the next round waits for the master; "


class MasterUnreachable(Event, frozen=True):
    """The connection to the master is lost, or cannot be established."""

    reason: str
    endpoint: str
    workers: WorkersAlone
    limit_s: float
    """Seconds until this node gives up."""
    is_again: bool
    """Whether this node was connected before."""
    hosts: tuple[str, ...] = ()
    """With several master hosts and no leader: the answer of each host."""

    name = "master.unreachable"
    severity = Severity.WARNING

    def __str__(self) -> str:
        why = f" at {self.endpoint} ({self.reason})"
        if self.hosts:
            needed = len(self.hosts) // 2 + 1
            why = (
                f"; {'; '.join(self.hosts)}; {needed} of {len(self.hosts)} needed to elect a leader"
            )
        tries = "reconnecting" if self.is_again else "trying again"
        return (
            f"no connection to the master{why}: {self.workers.value}{tries}, gives up in "
            f"{_duration(self.limit_s)}"
        )


class MasterAwaitedToLeave(Event, frozen=True):
    """This node is leaving, and tries for ``limit_s`` to reach the master to report it."""

    limit_s: float

    name = "master.awaited"
    line = (
        "no connection to the master: trying for {limit_s:.0f} s to report that this node is "
        "leaving"
    )


class WorkersFenced(Event, frozen=True):
    """There has been no leader for too long: the workers of this node are killed."""

    limit_s: float

    name = "workers.fenced"
    severity = Severity.WARNING
    line = (
        "no leader for {limit_s:g} s: killing the workers of this node, since the job may restart "
        "without it"
    )


class FenceLate(Event, frozen=True):
    """The workers of this node were killed too late, after a new leader could start others."""

    late_s: float

    name = "fence.late"
    severity = Severity.WARNING
    line = (
        "the workers of this node were killed up to {late_s:.1f} s too late (host overloaded): "
        "the job may have restarted without this node before that"
    )


# --- leaving and the end ---------------------------------------------------------------------


class NodeSignalled(Event, frozen=True):
    """A signal stops this node."""

    signal: str
    workers: int

    name = "agent.signalled"
    severity = Severity.WARNING

    def __str__(self) -> str:
        return f"received {self.signal}: {_and_leaves(self.workers)}"


class KilledOnRequest(Event, frozen=True):
    """A second Ctrl-C: all remaining processes are killed."""

    name = "agent.killed_on_request"
    severity = Severity.WARNING
    line = "second Ctrl-C: killing all remaining processes"


class NodePreempted(Event, frozen=True):
    """This node is being preempted; all ranks have ``limit_s`` to save a snapshot."""

    reason: str
    seconds: float
    limit_s: float

    name = "agent.preempted"
    severity = Severity.WARNING
    line = (
        "this node is being preempted ({reason}), {seconds:.0f} s left: saving a snapshot on all "
        "ranks (up to {limit_s:.0f} s)"
    )


class DrainOrdered(Event, frozen=True):
    """Another node is being preempted: this node takes part in the snapshot."""

    reason: str
    limit_s: float

    name = "drain.ordered"
    severity = Severity.WARNING
    line = "{reason}: saving a snapshot on all ranks (up to {limit_s:.0f} s)"


class ScaleUpOrdered(Event, frozen=True):
    """The world is about to grow: this node takes part in the snapshot."""

    reason: str
    limit_s: float

    name = "growth.ordered"
    line = "{reason}: saving a snapshot on all ranks first (up to {limit_s:.0f} s)"


class ScaleUpAborted(Event, frozen=True):
    """The world does not grow after all."""

    name = "growth.aborted"
    line = "not scaling up: too few new nodes are left; training continues"


class PreemptionNoticesUnavailable(Event, frozen=True):
    """The source of preemption notices is not available."""

    source: str
    reason: str

    name = "preemption.unavailable"
    severity = Severity.WARNING
    line = "--preemption-notice {source}: {reason}; continuing without preemption notices"


class ThisNodeLeaves(Event, frozen=True):
    """This node leaves now; ``step`` is that of the snapshot that all ranks saved, -1: none."""

    reason: str
    workers: int
    step: int

    name = "agent.leaving"
    severity = Severity.WARNING

    def __str__(self) -> str:
        left = f"all ranks saved the snapshot of step {self.step}: " if self.step >= 0 else ""
        return f"{left}{_and_leaves(self.workers)} ({self.reason})"


class LogsKept(Event, frozen=True):
    """The directory of this node's log files."""

    path: str

    name = "logs.kept"
    line = "logs of this node: {path}"


class TimeAccounted(Event, frozen=True):
    """Where the time of this node went, at its end; each second is in one phase."""

    seconds: float
    """Since this ft-run started."""
    phases: Mapping[str, float]
    """Seconds by phase."""
    restarts: Mapping[str, int]
    """Number of restarts by the kind of the failure."""
    restart_phases: Mapping[str, float]
    """Of ``phases``, the seconds from a failure to the next start of training, in total."""
    lost: Mapping[str, float]
    """Seconds of training whose steps were lost, by the kind of the failure."""
    goodput: float | None
    """Training less what was lost, as a share of ``seconds``; null: steps are not watched."""
    data_wait_s: float | None = None
    """Seconds of training that waited for data, of the worker that waited most in each round; null:
    no ``DataLoader`` was waited for."""
    slow_steps_s: float | None = None
    """Training beyond as many steps of the median time of the best hour; null: not known."""

    name = "time.accounted"

    def __str__(self) -> str:
        largest = sorted(self.phases.items(), key=lambda phase: -phase[1])
        spent = ", ".join(
            f"{name} {seconds:.1f} s" for name, seconds in largest[:3] if seconds > 0.1
        )
        count = sum(self.restarts.values())
        each_s = sum(self.restart_phases.values()) / max(1, count)
        each = f"{each_s:.1f} s" if each_s >= 1 else f"{each_s * 1000:.0f} ms"
        several = f"s, {each} each" if count > 1 else f", {each}"
        more = f"; {count} restart{several}" if count else ""
        return f"time: {self.seconds:.1f} s{f' ({spent})' * bool(spent)}{more}"


class JobEnded(Event, frozen=True):
    """The result of the job, the same on every node."""

    verdict: Verdict

    name = "job.ended"

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.INFO if self.verdict.exit_code == 0 else Severity.ERROR

    def __str__(self) -> str:
        word = "succeeded" if self.verdict.outcome is Outcome.SUCCEEDED else "FAILED"
        return f"job {word}: {self.verdict.sentence}"
