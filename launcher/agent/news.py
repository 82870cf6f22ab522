"""Decides which messages and connection changes of the master become events, and how often."""

import math
import time
from collections.abc import Callable

from msgspec.structs import replace

from ...events.event import Event
from ...events.node import MasterConnected, MasterUnreachable, NodeWaits, WorkersAlone
from ...events.workers import RegroupBegun, RestartBegun, RoundStarted
from ...rendezvous.master.link import LinkDown
from ...rendezvous.protocol.claim import Claim
from ...rendezvous.protocol.messages import Assignment, Waiting
from ..options import LaunchOptions
from ..reporting.live_status import restarts_used

_REMINDER_S = 30.0
_AWAY_REMINDER_S = 60.0
_SETTLED_S = 5.0
"""After this time, a new reason is news. Before, a cut connection is refused when retried."""


def waits(message: Waiting, options: LaunchOptions) -> NodeWaits:
    """Return the event for a node that waits for a round."""
    is_backoff_given = options.policy is not None and options.policy.backoff_max_s > 0
    return NodeWaits(message, is_backoff_given, bool(options.rendezvous.endpoints))


def is_news(message: Waiting, before: Waiting | None) -> bool:
    """Return whether the state of a waiting node has changed enough to print it.

    The master sends the state to a new node immediately. Soon after, it reports the connected nodes
    to all nodes. Its reminders are a minute apart.
    """
    if before is None or message.backoff_s or before.backoff_s:
        return True
    is_soon = 0 <= before.timeout_s - message.timeout_s < _REMINDER_S
    return not (is_soon and replace(message, timeout_s=before.timeout_s) == before)


def round_begun(
    assignment: Assignment, options: LaunchOptions
) -> RestartBegun | RegroupBegun | None:
    """Return the event of a restart or regroup; None for the first round."""
    if assignment.cause is not None:
        return RestartBegun(
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
    return RegroupBegun(assignment.round, assignment.node_rank, assignment.nodes, assignment.reason)


def round_started(assignment: Assignment, *, is_watched: bool) -> RoundStarted:
    """Return the event for the start of any round."""
    resumption = assignment.resumption
    return RoundStarted(
        assignment.round,
        assignment.node_rank,
        assignment.nodes,
        assignment.world_size,
        assignment.restarts,
        assignment.reason,
        resumption.step if resumption is not None else -1,
        is_watched,
        assignment.role_rank_offset,
        assignment.role_world_size,
    )


class LinkNews:
    """Reports the state of the connection to the master: each change once, and reminders."""

    def __init__(
        self,
        note: Callable[[Event], None],
        where: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._note, self._where, self._clock = note, where, clock
        self._reported: set[tuple[bool, WorkersAlone]] = set()
        """States that were reported in this outage."""
        self._reasons: set[str] = set()
        """Reasons that were reported in this outage."""
        self._since = self._last = -math.inf
        self._was_up = False

    def up(self, again: bool) -> None:
        """Handle a connection to the master, either the first one or a reconnection."""
        if again or self._reported:
            self._note(MasterConnected(again))
        self._was_up = True
        self._reported.clear()
        self._reasons.clear()

    def down(self, link: LinkDown, claim: Claim | None) -> None:
        """Handle a lost or failed connection to the master; called after each attempt."""
        workers = _alone(claim)
        now, change = self._clock(), (bool(link.hosts), workers)
        if not self._reasons:
            self._since = now
        is_news = link.reason not in self._reasons and now - self._since >= _SETTLED_S
        self._reasons.add(link.reason)
        if change in self._reported and not is_news and now - self._last < _AWAY_REMINDER_S:
            return
        self._reported.add(change)
        self._last = now
        self._note(
            MasterUnreachable(
                link.reason, self._where, workers, link.left_s, self._was_up, link.hosts
            )
        )


def _alone(claim: Claim | None) -> WorkersAlone:
    if claim is None or not claim.nodes:
        return WorkersAlone.NONE
    if claim.failures:
        return WorkersAlone.FAILED
    return WorkersAlone[claim.state.name]
