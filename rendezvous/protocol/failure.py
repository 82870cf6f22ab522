"""The record of one failure, and which of several is the root cause."""

import enum
import functools
import json
import re
import signal
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from .bounds import (
    Count,
    CountOrNone,
    Date,
    ErrorFile,
    ErrorText,
    ExitCode,
    Name,
    ShortText,
    StderrTail,
    Text,
)
from .carried import Proposal


class FailureKind(enum.Enum):
    """The kind of a failure."""

    WORKER = 1
    """A worker exited with a non-zero code or by a signal."""
    NODE_LOST = 2
    """A node's stream has been disconnected for longer than its grace period."""
    STUCK = 3
    """A worker survived SIGKILL (uninterruptible sleep), so its node cannot be used again."""
    START = 4
    """A worker could not be started, e.g. because the interpreter or program is missing."""
    PREEMPTED = 5
    """A node was asked to leave (SIGTERM)."""
    STORE = 6
    """The store process of ``--store separate`` ended while workers needed it."""
    HANG = 7
    """Workers make no progress, according to the stacks of all ranks."""


class Failure(Struct, frozen=True):
    """One failure, as its node reported it; bounded, so that it fits into any message.

    For a lost node, ``rank``, ``local_rank``, ``pid`` and ``exit_code`` are -1, -1, 0 and 0. For
    the store process, the ranks are -1. A hang has the values of a lost node, except that ``rank``
    is the hanging worker, or -1 if all are suspected. The node of a hang is -1 if no single node is
    the cause, and ``stderr_tail`` lists the positions of all ranks.
    """

    kind: FailureKind
    rank: CountOrNone
    local_rank: CountOrNone
    node_rank: CountOrNone
    host: Name
    pid: Count
    exit_code: ExitCode
    """As in ``subprocess``: the exit code, or minus the signal's number."""
    time_s: Date
    """Unix time on the failing host, whole seconds; for display, never compared between hosts."""
    role: Text = ""
    error_file: Text = ""
    """Path of the worker's error file on the failing host; empty if there is none."""
    error_json: ErrorFile = ""
    """Content of that file, bounded; empty if there is none."""
    message: ErrorText = ""
    """Type and message of the exception, or an error message if no worker exited."""
    stderr_tail: StderrTail = ""
    """Last lines of the worker's standard error, if they were captured."""
    out_of_memory: bool = False
    """Whether the kernel's OOM killer killed the worker."""
    after_stop: bool = False
    """Whether it occurred after the stop of its round was ordered."""
    trial: ShortText = ""
    """Settings that ``--auto-tune on`` was trying; empty if none."""
    proposal: Proposal | None = None
    """None if the node has none."""
    note: ShortText = ""
    """A clause that another room adds, e.g. what the worker was doing; empty if there is none."""

    def reported_by(self, node_rank: int, first_rank: int, workers: int) -> "Failure":
        """Return it as this node is allowed to report it: only for itself or its own workers."""
        rank = self.rank if 0 <= self.rank - first_rank < workers else -1
        if (self.node_rank, self.rank) == (node_rank, rank):
            return self
        return replace(self, node_rank=node_rank, rank=rank)

    def summary(self) -> str:
        """Return a readable clause that names node, rank and reason, with the note."""
        return self._reason() + (f", {self.note}" if self.note else "")

    def _reason(self) -> str:
        if self.kind is FailureKind.NODE_LOST:
            number = "" if self.node_rank < 0 else f" {self.node_rank}"
            return f"node{number} ({self.host}) was lost: {self.message}"
        if self.kind is FailureKind.HANG:
            return self.message
        if self.kind is FailureKind.PREEMPTED:
            return f"node {self.node_rank} ({self.host}) is leaving: {self.message}"
        what = "the store process" if self.kind is FailureKind.STORE else f"rank {self.rank}"
        where = f"{what} on node {self.node_rank} ({self.host})"
        if self.kind is FailureKind.START:
            return f"{where} could not be started: {self.message}"
        if self.kind is FailureKind.STUCK:
            return f"{where} (pid {self.pid}) cannot be killed: {self.message}"
        if self.out_of_memory:
            return f"{where} was killed by the kernel's OOM killer (out of memory)"
        first = self.message.strip().partition("\n")[0][:200]
        if self.exit_code < 0:
            killed = f"{where} was killed by {signal_name(-self.exit_code)}"
            # The last line on standard error may be unrelated to the signal.
            return f"{killed}: {first}" if self.error_json and first else killed
        exited = f"{where} exited with {self.exit_code}"
        return f"{exited}: {first}" if first else exited


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Error texts of a worker that fails because of a peer: those of Python, gloo, NCCL, the TCP store
# and the socket layer, as seen when one rank of a running job is killed or cut off. A truncated
# pickle does not mean a lost peer. A string, because re compiles it at the first failure and caches
# it.
_COLLATERAL = (
    r"(?i)connection (was )?(reset|closed|refused|aborted)|broken pipe|closed by peer"
    r"|socket (is )?closed|socket Timeout|recvValue failed|failed to recv"
    r"|failed to connect|remote process (has )?(exited|terminated)"
    r"|ncclRemoteError|ncclSystemError|unhandled system error|NCCL communicator was aborted"
    r"|network error"
    r"|HeartbeatMonitor|sendBytes failed|\bstore\b[^\n]{0,80}(broken|closed)"
    r"|EOFError(?!: Ran out of input)|IncompleteRead|timed out|TimeoutError|collective.*timeout"
    r"|wait timeout after|no route to host|(network|host) is (unreachable|down)"
)

_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = (
    r"(The above exception was the direct cause of|During handling of the above exception)"
    r"[^\n]*\s*$"
)

_SEVERAL = r"The above exception was|During handling of the above|\\n *\| "
"""In JSON: an exception that was raised from another one, or a group of them."""
_NO_FRAME = r"(?m)^(?: *\| )?(?=\S)(?!Traceback|The above exception|During handling)(.*)$"

_PEER_SIGNALS = (signal.SIGABRT, signal.SIGPIPE)
"""Signals by which NCCL's watchdog, or C++ without a handler, ends a process whose peer is gone;
and the signal of a write to a closed connection."""


class Evidence(enum.IntEnum):
    """The evidence for a failure being the root cause, the best first."""

    OWN = 0
    """It cannot be a consequence of a lost peer: a signal, a specific exit code, an unrelated
    error, a lost node."""
    UNSAID = 1
    """An exit code as after any exception, without a known error."""
    COLLATERAL = 2
    """It is evidently a consequence of another failure."""


@functools.lru_cache(maxsize=64)
def evidence(failure: Failure) -> Evidence:
    """Return the evidence for a failure being a root cause; cached, as a search is slow."""
    if failure.after_stop:
        return Evidence.COLLATERAL
    if failure.kind is FailureKind.STUCK:
        return Evidence.UNSAID  # found when the round was stopped
    if failure.kind is not FailureKind.WORKER or failure.out_of_memory or failure.proposal:
        return Evidence.OWN
    if failure.exit_code < 0 and -failure.exit_code not in _PEER_SIGNALS:
        return Evidence.OWN
    words = own_words(failure)
    if blames_peer(words):
        return Evidence.COLLATERAL
    if not words.strip() and (failure.exit_code == 1 or failure.exit_code < 0):
        return Evidence.UNSAID
    return Evidence.OWN


def blames_peer(text: str) -> bool:
    """Return whether a worker's error shows that it lost its connection to a peer."""
    return bool(re.search(_COLLATERAL, text))


def is_collateral(failure: Failure) -> bool:
    """Return whether the failure is evidently a consequence of another one.

    It is if a worker exited with an error about a lost connection to a peer, or ended after the
    stop of its round was ordered.
    """
    return evidence(failure) is Evidence.COLLATERAL


def own_words(failure: Failure) -> str:
    """Return a worker's own report of its end: its recorded exception, or its last traceback.

    It includes the exceptions from which the last one was raised, and those of a group. The part of
    standard error before the last traceback is omitted, because the worker survived it.
    """
    if failure.error_json:
        return "\n".join([failure.message, *_inner_exceptions(failure.error_json)])
    pieces = failure.stderr_tail.split(_TRACEBACK)
    first = len(pieces) - 1
    while first > 1 and re.search(_CHAINED, pieces[first - 1].rstrip()):
        first -= 1
    return "\n".join([failure.message, *pieces[first:]])


def _inner_exceptions(error_json: str) -> list[str]:
    """Return the lines of a recorded traceback that are not frames, if it has several parts."""
    if not re.search(_SEVERAL, error_json):  # most are simple, and there may be thousands
        return []
    try:
        stack = json.loads(error_json)["message"]["extraInfo"]["py_callstack"]
        return re.findall(_NO_FRAME, stack)
    except (ValueError, RecursionError, LookupError, TypeError):  # a node may send any text
        return []


def root_cause(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure from which the others follow: the first with the best evidence.

    The order is the master's order of arrival, because clocks of hosts are not compared. A failure
    of which only the exit code is known may be collateral. One that cannot be collateral precedes
    it, even on the same node: a worker that ends closes its connections before it is dead, and a
    peer that detects that can be dead before it.
    """
    return min(failures, key=evidence, default=None)  # the first of equal ones


def node_lost(node_rank: int | None, host: str, role: str, why: str) -> Failure:
    """Return the failure record of a lost node, which cannot report anything itself."""
    return _of_node(FailureKind.NODE_LOST, node_rank, host, role, why)


def preempted(node_rank: int | None, host: str, role: str, why: str) -> Failure:
    """Return the failure record of a node that was asked to leave."""
    return _of_node(FailureKind.PREEMPTED, node_rank, host, role, why)


def hung(node_rank: int | None, host: str, role: str, why: str) -> Failure:
    """Return the failure record of workers that hang; without a rank."""
    return _of_node(FailureKind.HANG, node_rank, host, role, why)


def _of_node(kind: FailureKind, node_rank: int | None, host: str, role: str, why: str) -> Failure:
    return Failure(
        kind=kind,
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
