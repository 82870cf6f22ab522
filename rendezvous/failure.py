"""What is known of one failure, and which of several is the root cause. Pure."""

import enum
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass


class FailureKind(enum.Enum):
    """What failed."""

    WORKER = 1
    """A worker exited non-zero or by a signal."""
    NODE_LOST = 2
    """A node's stream is gone for longer than its grace."""
    STUCK = 3
    """A worker survived SIGKILL (uninterruptible sleep): its node cannot be used again."""
    START = 4
    """A worker could not be started at all: the interpreter or program is missing, say."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure, as its node reported it; bounded in size, so that it fits any message.

    For a lost node ``rank``, ``local_rank``, ``pid`` and ``exit_code`` are -1, -1, 0 and 0.
    """

    kind: FailureKind
    rank: int
    local_rank: int
    node_rank: int
    host: str
    pid: int
    exit_code: int
    """As ``subprocess`` has it: the exit status, or minus the signal's number."""
    time_s: int
    """Unix time on the failing host, whole seconds; shown, never compared across hosts."""
    role: str = ""
    error_file: str = ""
    """Path of the ``@record`` file on the failing host; empty when there is none."""
    error_json: str = ""
    """Content of that file, bounded; empty when there is none."""
    message: str = ""
    """Type and text of the exception, or a sentence for what is not a worker's exit."""
    stderr_tail: str = ""
    """The last lines of the worker's standard error, where they were captured."""
    out_of_memory: bool = False
    """The kernel's OOM killer did it."""
    after_stop: bool = False
    """It came after the stop of its round was ordered."""

    def summary(self) -> str:
        """Return one clause that names node, rank and reason, for people."""
        if self.kind is FailureKind.NODE_LOST:
            return f"node {self.node_rank} ({self.host}) was lost: {self.message}"
        where = f"rank {self.rank} on node {self.node_rank} ({self.host})"
        if self.kind is FailureKind.START:
            return f"{where} could not be started: {self.message}"
        if self.kind is FailureKind.STUCK:
            return f"{where} (pid {self.pid}) does not die: {self.message}"
        if self.out_of_memory:
            return f"{where} was killed by the kernel's OOM killer (out of memory)"
        if self.exit_code < 0:
            return f"{where} was killed by {signal_name(-self.exit_code)}"
        if self.message:
            first = self.message.strip().splitlines()[0][:200]
            return f"{where} exited with {self.exit_code}: {first}"
        return f"{where} exited with {self.exit_code}"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# What a worker says when the failure is that of a peer it was talking to. Words of gloo, NCCL,
# the TCP store and the socket layer, as seen when one rank of a running job is killed.
_COLLATERAL = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|closed by peer"
    r"|connection closed|socket (is )?closed|socket Timeout|recvValue failed|failed to recv"
    r"|failed to connect|remote process (has )?(exited|terminated)"
    r"|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|network error"
    r"|HeartbeatMonitor|sendBytes failed|store.*(broken|closed)|EOFError|gloo.*Timed out",
    re.IGNORECASE | re.DOTALL,
)


def blames_peer(text: str) -> bool:
    """Return whether these are the words of a worker that lost another one it was talking to."""
    return bool(_COLLATERAL.search(text))


def is_collateral(failure: Failure) -> bool:
    """Return whether the failure plainly follows from another one.

    It does when a worker exited by itself with an error about a lost connection to a peer, or
    when it ended after the stop of its round was ordered.
    """
    if failure.after_stop:
        return True
    # SIGABRT is how NCCL's watchdog ends a process whose peer is gone.
    by_itself = failure.exit_code > 0 or failure.exit_code == -signal.SIGABRT
    if failure.kind is not FailureKind.WORKER or not by_itself:
        return False
    return blames_peer(failure.message) or blames_peer(failure.stderr_tail)


def root_cause(failures: Sequence[Failure]) -> Failure | None:
    """Return the first failure, by the order given, that is not collateral; else the first.

    The order is the order in which the master heard of them: clocks of hosts are not compared.
    """
    for failure in failures:
        if not is_collateral(failure):
            return failure
    return failures[0] if failures else None


def node_lost(node_rank: int | None, host: str, role: str, why: str) -> Failure:
    """Return the failure record of a node that is gone, which can report nothing itself."""
    return Failure(
        kind=FailureKind.NODE_LOST,
        rank=-1,
        local_rank=-1,
        node_rank=-1 if node_rank is None else node_rank,
        host=host,
        pid=0,
        exit_code=0,
        time_s=0,
        role=role,
        message=why,
    )
