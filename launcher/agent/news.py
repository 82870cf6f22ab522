"""What of the master's messages and connection is worth an event, and how often."""

import math
import time
from collections.abc import Callable

from ...events.event import Event
from ...events.node import MasterConnected, MasterUnreachable, NodeWaits, WorkersAlone
from ...events.workers import RegroupBegun, RestartBegun
from ...rendezvous.master.link import LinkDown
from ...rendezvous.protocol.messages import Assignment, Claim, Waiting
from ...values import replace
from ..options import LaunchOptions
from ..reporting.live_status import restarts_used

_REMINDER_S = 30.0
_AWAY_REMINDER_S = 60.0


def waits(message: Waiting, options: LaunchOptions) -> NodeWaits:
    """Return the event of a node that waits for a round."""
    is_backoff_given = options.policy is not None and options.policy.backoff_max_s > 0
    return NodeWaits(message, is_backoff_given, bool(options.rendezvous.endpoints))


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


class LinkNews:
    """Reports the connection to the master: each change once, and reminders."""

    def __init__(
        self,
        note: Callable[[Event], None],
        where: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing reported.

        Args:
            note: takes events.
            where: the master is.
            clock: returns seconds.
        """
        self._note, self._where, self._clock = note, where, clock
        self._reported: set[tuple[str, WorkersAlone]] = set()
        """While a link is cut, two reasons may take turns for minutes."""
        self._last = -math.inf
        self._was_up = False

    def up(self, again: bool) -> None:
        """The master is connected, for the first time or again."""
        if again or self._reported:
            self._note(MasterConnected(again))
        self._was_up = True
        self._reported.clear()

    def down(self, link: LinkDown, claim: Claim | None) -> None:
        """The master is not connected any more, or cannot be; called after each attempt."""
        workers = _alone(claim)
        # What all listed hosts say is one reason: one of them is asked after the other.
        change = ("" if link.hosts else link.reason, workers)
        if change in self._reported and self._clock() - self._last < _AWAY_REMINDER_S:
            return
        self._reported.add(change)
        self._last = self._clock()
        self._note(
            MasterUnreachable(
                link.reason, self._where, workers, link.left_s, self._was_up, link.hosts
            )
        )


def _alone(claim: Claim | None) -> WorkersAlone:
    """Return what the workers of this node do, which has no connection to the master."""
    if claim is None or not claim.nodes:
        return WorkersAlone.NONE
    if claim.failures:
        return WorkersAlone.FAILED
    return WorkersAlone[claim.state.name]
