"""How many consecutive restarts have brought no progress.

Scripts count their steps in two ways. A script that reports its own number (``progress(step)``)
reports the position of the training in any round: a round has made progress if it exceeded the
furthest step of all previous rounds. A script whose optimizers are counted starts each round at 0,
and does not report where it has resumed: any step may be a new one. So a round of such a script has
made no progress only if it did not do a single step; otherwise a job with progress could be ended.
"""

from collections.abc import Collection

from ..protocol.claim import PastProgress, Progress


class ProgressRecord:
    """The known progress of one job."""

    def __init__(self) -> None:
        self.past: PastProgress | None = None
        """State for a later master, or from an earlier one; None before a round has ended."""

    def round_over(
        self, reports: Collection[Progress], *, is_complete: bool, has_failed: bool
    ) -> None:
        """Evaluate a round that has ended.

        Args:
            reports: reports of its nodes.
            is_complete: whether all nodes reported; the steps of others may have been new ones.
            has_failed: whether a failure has ended the round.
        """
        furthest = max((progress.furthest for progress in reports), default=-1)
        before = self.past.furthest if self.past is not None else -1
        has_stepped = any(progress.has_stepped for progress in reports)
        if furthest > before or (has_stepped and furthest < 0):
            self.past = PastProgress(max(furthest, before), 0)
        elif is_complete and has_failed:
            # The first round is not a restart.
            idle = 0 if self.past is None else self.past.idle_restarts + 1
            self.past = PastProgress(before, idle)

    def exhausted(self, limit: int) -> str:
        """Return a message if ``limit`` restarts brought no progress; empty if not.

        A ``limit`` of 0 means no limit.
        """
        if not limit or self.past is None or self.past.idle_restarts < limit:
            return ""
        beyond = f" beyond step {self.past.furthest}" if self.past.furthest >= 0 else ""
        restarts = "1 restart" if limit == 1 else f"{limit} consecutive restarts"
        return f"{restarts} without a step{beyond}: --max-no-progress {limit}"
