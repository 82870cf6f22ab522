"""Whether nodes are lost, or it is the master that is cut off: the others are asked first. Pure.

When nothing is heard of any node of several hosts, it is the master's own link that is down, or its
host was frozen, far more often than all of theirs. Their workers run on all the while, so the round
is kept for as long as the agents themselves wait for a master.
"""

import enum
import math

from .events import GroupSettings


class Judgement(enum.Enum):
    """What is to be done where the grace of a node is over."""

    LOST = "lost"
    ASK = "ask the others"
    KEEP = "no node answers: the master is cut off"


class Liveness:
    """What is known of the others since a stream broke. All times are the group's, in seconds."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._has_anyone_spoken = True
        """Since a stream broke last."""
        self._is_asked = False
        self._is_cut_off = False
        self._not_before = -math.inf
        """Until then no node is lost."""

    def broke(self) -> None:
        """A stream broke."""
        self._has_anyone_spoken = False

    def all_broke(self, now: float) -> None:
        """No stream is left, or no node answers."""
        self._is_asked, self._is_cut_off = False, True
        self._not_before = now + self._settings.master_timeout_s

    def spoke(self) -> bool:
        """A node has said something; return whether the master was cut off until now."""
        was_cut_off, self._is_cut_off = self._is_cut_off, False
        was_asked, self._is_asked = self._is_asked, False
        self._has_anyone_spoken = True
        if was_cut_off or was_asked:
            self._not_before = -math.inf
        return was_cut_off

    def delayed(self, loss_at: float | None) -> float | None:
        """Return when a node that would be lost at that time is given up; None for never."""
        return None if loss_at is None else max(loss_at, self._not_before)

    def judge(self, now: float, *, are_others_there: bool) -> Judgement:
        """Return what is to be done now that the grace of a node is over.

        Args:
            now: the time.
            are_others_there: there are nodes whose streams have not broken.
        """
        if self._has_anyone_spoken or self._is_cut_off:  # for too long, that is
            self._is_asked = self._is_cut_off = False
            return Judgement.LOST
        if are_others_there and not self._is_asked:
            self._is_asked = True
            self._not_before = now + self._settings.identity_answer_s
            return Judgement.ASK
        self.all_broke(now)
        return Judgement.KEEP
