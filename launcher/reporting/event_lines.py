"""The words of the event lines: what a person reads of a run, each line with round and node."""

import logging
import time
from collections.abc import Sequence

from ...rendezvous.protocol.failure import Failure
from ...rendezvous.protocol.messages import Assignment, Outcome, Verdict, Waiting
from ...values import replace
from ..options import LaunchOptions
from ..spawner.client import ForkServerEvent, ForkServerState

_PIDS_SHOWN = 8
_REMINDER_S = 30.0


def _at(assignment: Assignment) -> str:
    return f"round={assignment.round} node={assignment.node_rank}"


def nodes_wanted(min_nodes: int, max_nodes: int) -> str:
    """Return ``4`` or ``2:5``, as ``--nnodes`` has it."""
    return str(min_nodes) if min_nodes == max_nodes else f"{min_nodes}:{max_nodes}"


def hello(node_id: str, job_id: str, workers: int, source: str, where: str) -> str:
    """Return the first line of every run."""
    return f"job={job_id} node={node_id} nproc_per_node={workers} ({source}), {where}"


def timer_expired(assignment: Assignment, pid: int, scope: str) -> str:
    """Return the line for a process that did not take its timer back in time."""
    return f"{_at(assignment)} ending process {pid}: its timer {scope!r} expired"


def started(assignment: Assignment, pids: Sequence[int], store_pid: int | None) -> str:
    """Return the line for workers that have been started, and the store process if there is one."""
    last = assignment.rank_offset + len(pids) - 1
    ranks = f"{assignment.rank_offset}-{last}" if len(pids) > 1 else str(last)
    shown = ",".join(map(str, pids[:_PIDS_SHOWN])) + (",…" if len(pids) > _PIDS_SHOWN else "")
    return (
        f"{_at(assignment)} started ranks={ranks} of {assignment.world_size} "
        f"on {assignment.nodes} node(s) pids={shown} "
        f"store={assignment.master_addr}:{assignment.master_port}"
        + (f" in process {store_pid}" if store_pid is not None else "")
    )


def waiting(message: Waiting) -> str:
    """Return the line for a node that waits, with who is missing where that is known."""
    if message.spare:
        return f"this node is a spare: a round runs without it ({message.joined} nodes in all)"
    if message.backoff_s:
        return f"the next round is formed in {message.backoff_s:.0f} s (--restart-backoff)"
    wanted = nodes_wanted(message.min_nodes, message.max_nodes)
    missing = f"; missing: {', '.join(message.missing)}" if message.missing else ""
    return (
        f"waiting for nodes: {message.joined} of {wanted} are here{missing} "
        f"(gives up in {message.timeout_s:.0f} s)"
    )


def is_news(message: Waiting, before: Waiting | None) -> bool:
    """Return whether a node that waits has something to say that it did not just say.

    The master tells a newcomer at once, and soon after all of them who has come; its reminders
    are a minute apart.
    """
    if before is None or message.backoff_s or before.backoff_s:
        return True
    is_soon = 0 <= before.timeout_s - message.timeout_s < _REMINDER_S
    return not (is_soon and replace(message, timeout_s=before.timeout_s) == before)


def checking(progress: str) -> str:
    """Return the line for how far the checks are."""
    return f"checks: {progress}"


def failed(assignment: Assignment, failure: Failure) -> str:
    """Return the line for a failure on this node."""
    return f"{_at(assignment)} {failure.summary()}"


def stopping(assignment: Assignment, reason: str, alive: int) -> str:
    """Return the line for the lockstep stop."""
    return f"{_at(assignment)} stopping {alive} worker(s): {reason}"


def stale(assignment: Assignment, reason: str, alive: int) -> str:
    """Return the line for workers that the others went on without."""
    return f"{_at(assignment)} killing {alive} worker(s) at once: {reason}"


def killing(assignment: Assignment, alive: int, timeout_s: float) -> str:
    """Return the line for workers that did not end in time."""
    return (
        f"{_at(assignment)} {alive} worker(s) still alive "
        f"after --shutdown-timeout {timeout_s:g} s: sending SIGKILL"
    )


def restarts_used(assignment: Assignment, options: LaunchOptions) -> str:
    """Return how much of the restart budget is used, as ``1/3``."""
    has_window = options.policy is not None and options.policy.restart_window_s
    used = assignment.restarts_in_window if has_window else assignment.restarts
    return f"{used}/{options.rendezvous.max_restarts}"


def restart(assignment: Assignment, options: LaunchOptions) -> str:
    """Return the line that opens a round after a failure; the same on every node."""
    assert assignment.cause is not None
    count = restarts_used(assignment, options)
    if assignment.is_free:
        count = f"without a count ({count} used)"
    decision = assignment.decision or "default rule"
    return f"{_at(assignment)} restart {count}: {assignment.cause.summary()} ({decision})"


def regroup(assignment: Assignment) -> str:
    """Return the line that opens a round after a change of members."""
    return f"{_at(assignment)} regroup with {assignment.nodes} node(s): {assignment.reason}"


def done(assignment: Assignment, workers: int) -> str:
    """Return the line for a node whose workers have all succeeded."""
    others = "; waiting for the other nodes" if assignment.nodes > 1 else ""
    return f"{_at(assignment)} all {workers} worker(s) of this node finished{others}"


def leftovers(pids: Sequence[int]) -> str:
    """Return the line for processes that workers left running."""
    named = ", ".join(map(str, pids[:_PIDS_SHOWN]))
    return f"ending {len(pids)} process(es) that the workers left running (pid {named})"


def leaving(signal_name: str, workers: int) -> str:
    """Return the line for an agent that was asked to go away."""
    stopping = f"stopping {workers} worker(s) and " if workers else ""
    return f"received {signal_name}: {stopping}leaving the job"


def link_down(reason: str, where: object, has_workers: bool) -> str:
    """Return the line for a master that cannot be reached."""
    so = "workers run on; trying again" if has_workers else "trying again"
    return f"no connection to the master at {where} ({reason}): {so}"


def farewell(limit_s: float) -> str:
    """Return the line for a node that leaves while the master is away."""
    return f"the master is away: trying for {limit_s:.0f} s to tell it that this node leaves"


def verdict(message: Verdict) -> str:
    """Return the last line of every run, the same on every node."""
    word = "succeeded" if message.outcome is Outcome.SUCCEEDED else "FAILED"
    return f"job {word}: {message.sentence}"


def image(event: ForkServerEvent, modules: Sequence[str], who: str = "workers") -> tuple[str, int]:
    """Return the line for the image that ``who`` are forked from, and its level."""
    named = ", ".join(modules)
    match event.state:
        case ForkServerState.LOADING:
            return f"preload: importing {named}", logging.DEBUG
        case ForkServerState.READY:
            return f"preload: imported {named} in {event.text}", logging.INFO
        case ForkServerState.STALE:
            return f"preload: {event.text} has changed on disk; importing again", logging.INFO
        case ForkServerState.FAILED:
            text = f"preload: {event.text}; {who} start the ordinary way"
            return text, logging.WARNING


def waiting_for_preload(assignment: Assignment) -> str:
    """Return the line for workers that begin when modules have been imported."""
    return f"{_at(assignment)} waits for the preload"


class LiveStatus:
    """The text of the live line."""

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._since = time.monotonic()
        self._place: Assignment | None = None
        self.waiting: Waiting | None = None
        self.connected = True
        self.checking = ""
        """How far the checks are; empty while there are none."""

    def started(self, assignment: Assignment) -> None:
        """A round was started here."""
        self._place, self.waiting = assignment, None

    def text(self) -> str:
        """Return the line as of now."""
        options, assignment, waiting_ = self._options.rendezvous, self._place, self.waiting
        wanted = nodes_wanted(options.min_nodes, options.max_nodes)
        parts = [f"ft-run {options.job_id}"]
        if self.checking:
            parts.append(f"checks {self.checking}")
        elif waiting_ is not None:
            parts.append(f"{waiting_.joined}/{wanted} nodes")
            if waiting_.missing:
                parts.append("missing " + ", ".join(waiting_.missing))
            if waiting_.spare:
                parts.append("spare")
        elif assignment is not None:
            parts.append(f"{assignment.nodes}/{wanted} nodes")
        if assignment is not None:
            parts += [
                f"round {assignment.round}",
                f"restarts {restarts_used(assignment, self._options)}",
            ]
        if not self.connected:
            parts.append("master away")
        parts.append("up " + duration(time.monotonic() - self._since))
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """Return ``1:02:03``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"
