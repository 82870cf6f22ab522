"""What is told of what this node hears and does, as events."""

from collections.abc import Callable, Sequence

from ... import events as ev
from ...rendezvous.protocol.messages import Assignment, Stop, Waiting
from ...values import replace
from ..options import LaunchOptions
from ..processes.dying import DEVICES_SURVIVE_KILL_S, SURVIVES_KILL_S
from ..reporting.live_status import restarts_used
from ..spawner.client import ForkServerEvent

_REMINDER_S = 30.0


def waits(message: Waiting, options: LaunchOptions) -> ev.NodeWaits:
    """Return the event of a node that waits for a round."""
    return ev.NodeWaits(
        joined=message.joined,
        min_nodes=message.min_nodes,
        max_nodes=message.max_nodes,
        missing=message.missing,
        timeout_s=message.timeout_s,
        is_spare=message.spare,
        backoff_s=message.backoff_s,
        is_backoff_given=options.policy is not None and options.policy.backoff_max_s > 0,
        has_successors=bool(options.rendezvous.endpoints),
    )


def is_news(message: Waiting, before: Waiting | None) -> bool:
    """Return whether a waiting node has news to print.

    The master sends a newcomer the state at once, and soon after it tells all nodes which ones
    have come; its reminders are a minute apart.
    """
    if before is None or message.backoff_s or before.backoff_s:
        return True
    is_soon = 0 <= before.timeout_s - message.timeout_s < _REMINDER_S
    return not (is_soon and replace(message, timeout_s=before.timeout_s) == before)


def round_begun(
    assignment: Assignment, options: LaunchOptions
) -> ev.RestartBegun | ev.RegroupBegun | None:
    """Return the event of a restart or regroup; None for the first round."""
    if assignment.cause is not None:
        return ev.RestartBegun(
            assignment.round,
            assignment.node_rank,
            cause=assignment.cause,
            decision=assignment.decision,
            is_free=assignment.is_free,
            restarts_used=restarts_used(assignment, options),
            max_restarts=options.rendezvous.max_restarts,
        )
    if assignment.round == 0:
        return None
    return ev.RegroupBegun(
        assignment.round, assignment.node_rank, assignment.nodes, assignment.reason
    )


def started(
    assignment: Assignment, pids: Sequence[int], store_pid: int | None
) -> ev.WorkersStarted:
    """Return the event of workers that have been started, and of their store."""
    return ev.WorkersStarted(
        assignment.round,
        assignment.node_rank,
        first_rank=assignment.rank_offset,
        pids=tuple(pids),
        world_size=assignment.world_size,
        nodes=assignment.nodes,
        store_addr=assignment.master_addr,
        store_port=assignment.master_port,
        store_pid=store_pid,
    )


def stopped(assignment: Assignment, alive: int, stop: Stop) -> ev.WorkersStopped:
    """Return the event of workers that the master has told to stop, so many of them alive."""
    return ev.WorkersStopped(
        assignment.round, assignment.node_rank, alive, stop.reason, stop.is_stale
    )


def preload(
    event: ForkServerEvent,
    modules: Sequence[str],
    *,
    is_of_checks: bool = False,
    is_repeated: bool = False,
) -> ev.PreloadChanged:
    """Return the event of a fork server that imports modules."""
    state = ev.PreloadState[event.state.name]
    return ev.PreloadChanged(state, tuple(modules), event.text, is_of_checks, is_repeated)


def outlives_kill(pids: Sequence[int]) -> ev.Remark:
    """Return the event of processes that SIGKILL has not ended yet."""
    named = ", ".join(map(str, pids))
    return ev.Remark(
        f"process {named} has not ended {SURVIVES_KILL_S:g} s after SIGKILL: the kernel may be "
        f"releasing its memory, which may take {DEVICES_SURVIVE_KILL_S:g} s where there are GPUs, "
        "and longer while it makes progress"
    )


class LinkNews:
    """What is told of the connection to the master: each reason of its loss once."""

    def __init__(self, tell: Callable[[ev.Event], None], where: str) -> None:
        """Begin with nothing told.

        Args:
            tell: tells the user.
            where: the master is.
        """
        self._tell, self._where = tell, where
        self._told: set[str] = set()
        """While a link is cut, two reasons may take turns for minutes."""

    def up(self, again: bool) -> None:
        """The master is connected, for the first time or again."""
        if again or self._told:
            self._tell(ev.MasterConnected(again))
        self._told.clear()

    def down(self, reason: str, *, has_workers: bool) -> None:
        """The master is not connected any more, or cannot be."""
        if reason not in self._told:
            self._told.add(reason)
            self._tell(ev.MasterUnreachable(reason, self._where, has_workers))
