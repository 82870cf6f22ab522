"""Decides whether nodes are lost or the master itself is cut off.

If no node of several hosts responds, the likely cause is the master's own link, or a freeze of its
host. The nodes' workers keep running in the meantime, so the round is kept for as long as the
agents wait for a master.
"""

import enum
import math

from .events import GroupSettings


class Judgement(enum.Enum):
    """The action when the grace period of a node has expired."""

    LOST = "lost"
    ASK = "ask the others"
    KEEP = "no node answers: the master is cut off"


class Liveness:
    """State of the other nodes since a stream broke. All times are the group's, in seconds."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._has_anyone_spoken = True
        """Whether any message was received since the last stream broke."""
        self._is_asked = False
        self._is_cut_off = False
        self._not_before = -math.inf
        """Until this time, no node is considered lost."""

    def broke(self) -> None:
        """Record that a stream broke."""
        self._has_anyone_spoken = False

    def all_broke(self, now: float) -> None:
        """Record that no stream is left, or no node responds."""
        self._is_asked, self._is_cut_off = False, True
        self._not_before = now + self._settings.master_timeout_s

    def spoke(self) -> bool:
        """Record a received message; return whether the master was cut off until now."""
        was_cut_off, self._is_cut_off = self._is_cut_off, False
        was_asked, self._is_asked = self._is_asked, False
        self._has_anyone_spoken = True
        if was_cut_off or was_asked:
            self._not_before = -math.inf
        return was_cut_off

    def delayed(self, loss_at: float | None) -> float | None:
        """Return when a node whose loss is due at ``loss_at`` is given up; None if never."""
        return None if loss_at is None else max(loss_at, self._not_before)

    def judge(self, now: float, *, are_others_there: bool) -> Judgement:
        """Return the action when the grace period of a node has expired."""
        if self._has_anyone_spoken or self._is_cut_off:  # cut off: for longer than the limit
            self._is_asked = self._is_cut_off = False
            return Judgement.LOST
        if are_others_there and not self._is_asked:
            self._is_asked = True
            self._not_before = now + self._settings.identity_answer_s
            return Judgement.ASK
        self.all_broke(now)
        return Judgement.KEEP
