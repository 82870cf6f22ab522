"""What is told of what this node hears and does, as events."""

import math
import time
from collections.abc import Callable, Sequence

from ... import events as ev
from ...rendezvous.protocol.messages import Assignment, Claim, ClaimState, Stop, Waiting
from ...rendezvous.transport.link import LinkDown
from ...values import replace
from ..options import LaunchOptions
from ..processes.dying import DEVICES_SURVIVE_KILL_S, SURVIVES_KILL_S
from ..reporting.live_status import restarts_used
from ..spawner.client import ForkServerEvent

_REMINDER_S = 30.0
_AWAY_REMINDER_S = 60.0


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
    """What is told of the connection to the master: each change once, and reminders."""

    def __init__(
        self,
        tell: Callable[[ev.Event], None],
        where: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing told.

        Args:
            tell: tells the user.
            where: the master is.
            clock: returns seconds.
        """
        self._tell, self._where, self._clock = tell, where, clock
        self._told: set[tuple[str, ev.WorkersAlone]] = set()
        """While a link is cut, two reasons may take turns for minutes."""
        self._last = -math.inf
        self._was_up = False

    def up(self, again: bool) -> None:
        """The master is connected, for the first time or again."""
        if again or self._told:
            self._tell(ev.MasterConnected(again))
        self._was_up = True
        self._told.clear()

    def down(self, link: LinkDown, claim: Claim | None) -> None:
        """The master is not connected any more, or cannot be; said after each attempt."""
        workers = _alone(claim)
        # What all listed hosts say is one reason: one of them is asked after the other.
        change = ("" if link.hosts else link.reason, workers)
        if change in self._told and self._clock() - self._last < _AWAY_REMINDER_S:
            return
        self._told.add(change)
        self._last = self._clock()
        self._tell(
            ev.MasterUnreachable(
                link.reason, self._where, workers, link.left_s, self._was_up, link.hosts
            )
        )


def _alone(claim: Claim | None) -> ev.WorkersAlone:
    """Return what the workers of this node do, which has no connection to the master."""
    if claim is None or not claim.nodes:
        return ev.WorkersAlone.NONE
    if claim.failures:
        return ev.WorkersAlone.FAILED
    return _WORKERS_ALONE[claim.state]


_WORKERS_ALONE = {
    ClaimState.RUNNING: ev.WorkersAlone.RUN,
    ClaimState.DONE: ev.WorkersAlone.DONE,
    ClaimState.STOPPED: ev.WorkersAlone.STOPPED,
}
