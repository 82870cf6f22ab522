"""Events of this node's workers: start, failure, stop and restart, the preload, their output."""

from collections.abc import Mapping, Sequence

from msgspec import field

from ..rendezvous.protocol.failure import Failure
from .event import Event, RoundEvent, Severity

_PIDS_SHOWN = 8


def _joined(numbers: Sequence[int], between: str = ",") -> str:
    return between.join(map(str, numbers))


# --- rounds ----------------------------------------------------------------------------------


class RestartBegun(RoundEvent, frozen=True):
    """A round starts after a failure; the same on every node."""

    cause: Failure
    decision: str
    """The decision of the failure policy; empty: by the default rule."""
    is_free: bool
    """The restart is not counted."""
    restarts_used: int
    max_restarts: int

    name = "restart.decided"
    severity = Severity.WARNING

    def __str__(self) -> str:
        count = f"{self.restarts_used}/{self.max_restarts}"
        if self.is_free:
            count = f"(not counted, {count} used)"
        decision = self.decision or "default rule"
        return f"{self.at} restart {count}: {self.cause.summary()} ({decision})"


class RegroupBegun(RoundEvent, frozen=True):
    """A round starts after nodes have joined or left."""

    nodes: int
    reason: str

    name = "regroup.decided"
    line = "{at} regroup with {nodes} node(s): {reason}"


class RoundStarted(RoundEvent, frozen=True):
    """This node starts its workers of a round."""

    nodes: int
    world_size: int
    restarts: int
    """Counted restarts so far."""
    reason: str
    resumes_from: int = -1
    """The step of the snapshot that the workers resume from; -1: none."""
    is_watched: bool = False
    """Whether the workers report their steps."""
    role_rank_offset: int = 0
    """Rank of this node's local rank 0 among the workers of its role."""
    role_world_size: int = 0
    """Number of workers of its role."""

    name = "round.started"
    severity = Severity.DEBUG
    line = "{at} starting workers: {reason}"


class WorkersStarted(RoundEvent, frozen=True):
    """The workers of a round have started on this node; ``pids`` in order of local rank."""

    first_rank: int
    pids: tuple[int, ...]
    world_size: int
    nodes: int
    store_addr: str
    store_port: int
    store_pid: int | None
    """The store process, if there is one on this node."""
    not_started: tuple[int, ...] = ()
    """Local ranks whose program could not be executed; a ``worker.failed`` follows for each."""

    name = "workers.started"

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.DEBUG if self.not_started else Severity.INFO

    def __str__(self) -> str:
        last = self.first_rank + len(self.pids) - 1
        ranks = f"{self.first_rank}-{last}" if len(self.pids) > 1 else str(last)
        more = ",…" if len(self.pids) > _PIDS_SHOWN else ""
        return (
            f"{self.at} started ranks={ranks} of {self.world_size} on {self.nodes} node(s) "
            f"pids={_joined(self.pids[:_PIDS_SHOWN])}{more} "
            f"store={self.store_addr}:{self.store_port}"
            + (f" in process {self.store_pid}" if self.store_pid is not None else "")
        )


class TrainingStarted(RoundEvent, frozen=True):
    """A worker of this node has completed its first step; only of workers that are watched."""

    step: int = -1
    """The first completed step of the round, as the script counts them; -1: not known."""
    down_s: float = 0.0
    """Since training was interrupted on this node; 0: there was none before."""

    name = "training.started"

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.INFO if self.down_s else Severity.DEBUG

    def __str__(self) -> str:
        if not self.down_s:
            return f"{self.at} first step completed"
        step = f" (step {self.step})" if self.step >= 0 else ""
        return f"{self.at} training resumed after {self.down_s:.1f} s{step}"


class RoundProgressed(RoundEvent, frozen=True):
    """The workers of this node run; once a minute, and before what ends or interrupts training."""

    steps: int
    """Completed steps of the furthest worker, as the script counts them; -1: not known."""
    steps_per_s: float
    """Of the fastest worker, lately; 0: not known."""
    idle_s: float
    """Since the last step of any worker; 0: not known."""
    snapshot: int = -1
    """The step of the newest snapshot that all workers of this node have saved; -1: none."""
    replica: int = -1
    """The step of the newest shards of other nodes that this node holds; -1: none."""
    doing: str = ""
    """The phase of this node's first worker; empty: not known."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase of this node's first worker in this round; empty: it is not watched."""
    counted_steps: int = 0
    """Completed steps of this node's first worker: as it counts them, else those of this round."""
    data_wait_s: tuple[float, ...] = ()
    """Seconds for which training waited for torch's ``DataLoader`` in this round, by local rank; on
    a GPU, while that was idle. Empty: no loader was used."""
    idle_training_s: float = 0.0
    """Of ``phases``, the training since the last progress of this node's first worker."""

    name = "round.progressed"
    is_finite = True
    severity = Severity.DEBUG
    line = "{at} running, steps={steps} steps_per_s={steps_per_s:.3g} idle={idle_s:.1f} s"


class WorkerExited(RoundEvent, frozen=True):
    """A worker of this node exited."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    """The exit code, or minus the number of the signal."""
    after_stop: bool
    """Whether it was being stopped."""

    name = "worker.exited"
    severity = Severity.DEBUG
    line = "{at} rank {rank} (pid {pid}) ended with {exit_code}"


class RoundEnded(RoundEvent, frozen=True):
    """No process of a round is left on this node."""

    steps: int
    """Completed steps of the furthest worker, as the script counts them; -1: not known."""
    is_last: bool
    """Whether no further round starts on this node."""

    name = "round.ended"
    severity = Severity.DEBUG
    line = "{at} no process of the round is left on this node"


class WorkersSucceeded(RoundEvent, frozen=True):
    """All workers of this node exited with 0."""

    workers: int
    nodes: int

    name = "workers.succeeded"

    def __str__(self) -> str:
        others = "; waiting for the other nodes" if self.nodes > 1 else ""
        return f"{self.at} all {self.workers} worker(s) of this node finished{others}"


class WorkerFailed(RoundEvent, frozen=True):
    """A worker of this node failed, or the store process."""

    failure: Failure

    name = "worker.failed"
    severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.at} {self.failure.summary()}"


class TimerExpired(RoundEvent, frozen=True):
    """A timer of a process expired (``torch.distributed.elastic.timer``)."""

    pid: int
    scope: str

    name = "worker.timer_expired"
    severity = Severity.WARNING
    line = "{at} terminating process {pid}: its timer {scope!r} expired"


# --- hangs -----------------------------------------------------------------------------------


class HangSuspected(RoundEvent, frozen=True):
    """Workers of this node show no progress; the master decides whether they hang."""

    ranks: tuple[int, ...]
    idle_s: float
    """Since their last step, or their start."""

    name = "hang.suspected"
    is_finite = True
    severity = Severity.DEBUG

    def __str__(self) -> str:
        return f"{self.at} no progress of rank(s) {_joined(self.ranks)} for {self.idle_s:.1f} s"


class HangDismissed(RoundEvent, frozen=True):
    """Workers show no progress, but do not hang according to the master."""

    sentence: str
    """Why; empty: as reported before."""

    name = "hang.dismissed"

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.WARNING if self.sentence else Severity.DEBUG

    def __str__(self) -> str:
        return f"{self.at} {self.sentence or 'still no progress, and still no hang'}"


class StacksKept(RoundEvent, frozen=True):
    """The stacks of all ranks during a hang were written to a file."""

    path: str

    name = "hang.stacks_kept"
    line = "{at} stacks of all ranks: {path}"


# --- the end of workers ----------------------------------------------------------------------


class WorkersStopped(RoundEvent, frozen=True):
    """Workers are stopped; ``is_stale``: killed at once, since a newer round runs without them."""

    workers: int
    reason: str
    is_stale: bool

    name = "workers.stopping"

    def __str__(self) -> str:
        verb, how = ("killing", " at once") if self.is_stale else ("stopping", "")
        return f"{self.at} {verb} {self.workers} worker(s){how}: {self.reason}"


class WorkersKilled(RoundEvent, frozen=True):
    """Workers, or processes that they left running, did not exit in time and receive SIGKILL."""

    workers: int
    timeout_s: float
    is_option: bool
    """Whether that time is ``--shutdown-timeout``, not a shorter one."""
    leftovers: int
    """Number of processes that workers left running, if all workers have exited."""

    name = "workers.killed"
    severity = Severity.WARNING

    def __str__(self) -> str:
        limit = f"{'--shutdown-timeout ' if self.is_option else ''}{self.timeout_s:g} s"
        what = f"{self.workers} worker(s)"
        if self.leftovers:
            what = f"{self.leftovers} process(es) that the workers left running"
        return f"{self.at} {what} still alive after {limit}: sending SIGKILL"


class KillOutlived(Event, frozen=True):
    """Processes are still alive after SIGKILL."""

    pids: tuple[int, ...]
    after_s: float
    with_gpus_s: float
    """The limit for processes with GPUs."""

    name = "workers.outlived_kill"

    def __str__(self) -> str:
        return (
            f"process {_joined(self.pids, ', ')} still alive {self.after_s:g} s after SIGKILL: "
            f"the kernel may be releasing its memory (up to {self.with_gpus_s:g} s with GPUs, "
            "longer while it makes progress)"
        )


class LeftoversEnded(Event, frozen=True):
    """Processes that workers left running are terminated."""

    pids: tuple[int, ...]

    name = "workers.leftovers_ended"

    def __str__(self) -> str:
        pids = _joined(self.pids[:_PIDS_SHOWN], ", ")
        return (
            f"terminating {len(self.pids)} process(es) that the workers left running (pid {pids})"
        )


class GpuMemoryHeld(Event, frozen=True):
    """The workers have exited, but GPU memory is in use; bytes by the UUID of the GPU."""

    held: Mapping[str, int]

    name = "gpu.memory_held"
    severity = Severity.WARNING

    def __str__(self) -> str:
        held = ", ".join(f"{uuid} {size / 1e9:.1f} GB" for uuid, size in self.held.items())
        return f"the workers have exited, but GPU memory is still in use: {held}"


class GpuXid(Event, frozen=True):
    """The driver of a GPU has reported an error, during training or between rounds.

    Xid 43 and 45 are omitted: the end of a process causes them.
    """

    gpu: int
    """Index of nvidia-smi; -1: not known."""
    uuid: str
    xid: int
    """NVIDIA's number of the error, e.g. 79: the GPU has fallen off the bus."""

    name = "gpu.xid"
    severity = Severity.WARNING

    def __str__(self) -> str:
        return f"GPU {self.gpu} ({self.uuid}) has reported Xid {self.xid}"
