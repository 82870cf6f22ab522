"""Events of this node: how it joins, waits and leaves, its connection to the master, its end."""

import enum

from ..rendezvous.protocol.messages import Outcome, Verdict, Waiting
from .event import Event, Severity

_RESTART_DELAY = "delay between consecutive restarts"


def nodes_wanted(min_nodes: int, max_nodes: int) -> str:
    """Return ``4`` or ``2:5``, as ``--nnodes`` has it."""
    return str(min_nodes) if min_nodes == max_nodes else f"{min_nodes}:{max_nodes}"


def _and_leaves(workers: int) -> str:
    """Return what a node that leaves does with so many workers."""
    return f"stopping {workers} worker(s) and leaving the job" if workers else "leaving the job"


def _duration(seconds: float) -> str:
    """Return ``9 min 40 s``, ``10 min`` or ``55 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return " ".join([f"{minutes} min"] * bool(minutes) + [f"{rest} s"] * bool(rest or not minutes))


class NodeStarted(Event):
    """An agent begins; ``source`` says where the number of workers is from."""

    job_id: str
    node_id: str
    workers: int
    source: str
    master: str

    line = "job={job_id} node_id={node_id} nproc_per_node={workers} ({source}), {master}"


class ThisNodeRenamed(Event):
    """Another host with this one's name was there first: the master gave another identity."""

    proposed: str
    given: str

    def __str__(self) -> str:
        host = self.proposed.rpartition("/")[0]
        return f"duplicate host name {host}: this node is {self.given}"


class ForeignAddressAdvertised(Event):
    """The address given by ``--local-addr`` is none of this host."""

    address: str

    severity = Severity.WARNING
    line = (
        "--local-addr {address} is not an address of this host: workers of other nodes connect to "
        "it anyway (correct only behind NAT)"
    )


class NodeWaits(Event):
    """A node waits for a round."""

    waiting: Waiting
    is_backoff_given: bool
    """The delay is that of ``--restart-backoff``."""
    has_successors: bool = False
    """Several hosts may lead: a new leader waits too."""

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


class MasterConnected(Event):
    """The master is there; ``is_again``: it had been, before."""

    is_again: bool

    def __str__(self) -> str:
        return "reconnected to the master" if self.is_again else "connected to the master"


class WorkersAlone(enum.Enum):
    """What the workers of a node do that has no connection to the master; see ``ClaimState``."""

    NONE = ""
    RUNNING = "workers keep running; "
    DONE = "workers finished; "
    FAILED = "worker failed; the restart waits for the master; "
    STOPPED = "workers stopped; the next round waits for the master; "


class MasterUnreachable(Event):
    """The connection to the master is gone, or cannot be made."""

    reason: str
    endpoint: str
    workers: WorkersAlone
    limit_s: float
    """Seconds until this node gives up."""
    is_again: bool
    """It had been connected."""
    hosts: tuple[str, ...] = ()
    """Where no listed host is found to lead: what each of them has answered."""

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


class MasterAwaitedToLeave(Event):
    """A node leaves while the master is away, and waits at most this long to tell it."""

    limit_s: float

    line = (
        "no connection to the master: trying for {limit_s:.0f} s to report that this node is "
        "leaving"
    )


class WorkersFenced(Event):
    """No host has led for too long, so the workers of this node are killed."""

    limit_s: float

    severity = Severity.WARNING
    line = (
        "no leader for {limit_s:g} s: killing the workers of this node, since the job may restart "
        "without it"
    )


class FenceLate(Event):
    """The workers of this node were killed later than a leader elsewhere has waited for."""

    late_s: float

    severity = Severity.WARNING
    line = (
        "the workers of this node were killed up to {late_s:.1f} s too late (host overloaded): "
        "the job may have restarted without this node before that"
    )


# --- leaving and the end ---------------------------------------------------------------------


class NodeSignalled(Event):
    """A signal asks a node to leave."""

    signal: str
    workers: int

    severity = Severity.WARNING

    def __str__(self) -> str:
        return f"received {self.signal}: {_and_leaves(self.workers)}"


class KilledOnRequest(Event):
    """A second Ctrl-C: what is left is killed at once."""

    severity = Severity.WARNING
    line = "second Ctrl-C: killing all remaining processes"


class NodePreempted(Event):
    """This node is being preempted; the ranks have ``limit_s`` to leave the state of one step."""

    reason: str
    seconds: float
    limit_s: float

    severity = Severity.WARNING
    line = (
        "this node is being preempted in {seconds:.0f} s ({reason}): saving a snapshot on all "
        "ranks (up to {limit_s:.0f} s)"
    )


class DrainOrdered(Event):
    """Another node is being preempted."""

    reason: str
    limit_s: float

    severity = Severity.WARNING
    line = "{reason}: saving a snapshot on all ranks (up to {limit_s:.0f} s)"


class PreemptionNoticesUnavailable(Event):
    """Whether this node is being preempted cannot be asked."""

    source: str
    reason: str

    severity = Severity.WARNING
    line = "--preemption-notice {source}: {reason}; continuing without preemption notices"


class ThisNodeLeaves(Event):
    """This node leaves now; ``step`` is that which all ranks have left, -1: none is known."""

    reason: str
    workers: int
    step: int

    severity = Severity.WARNING

    def __str__(self) -> str:
        left = f"all ranks saved the snapshot of step {self.step}: " if self.step >= 0 else ""
        return f"{left}{_and_leaves(self.workers)} ({self.reason})"


class LogsKept(Event):
    """Where this node's log files are."""

    path: str

    line = "logs of this node: {path}"


class JobEnded(Event):
    """How the job ended, the same on every node."""

    verdict: Verdict

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.INFO if self.verdict.exit_code == 0 else Severity.ERROR

    def __str__(self) -> str:
        word = "succeeded" if self.verdict.outcome is Outcome.SUCCEEDED else "FAILED"
        return f"job {word}: {self.verdict.sentence}"
