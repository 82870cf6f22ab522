"""How many consecutive restarts have brought the job no further. Pure.

Scripts count their steps in two ways. One that says its own number (``progress(step)``) says how
far the training is, whatever round it is in: a round has brought it further when it came beyond the
furthest step of all rounds before. One whose optimizers are counted begins each round at 0, and
where it has resumed nothing says: any step may be a new one. So a round of such a script has
brought it no further only when it did not do a single step; else a job that gets on could be ended.
"""

from collections.abc import Collection

from ..protocol.messages import PastProgress, Progress


class ProgressRecord:
    """What is known of the progress of one job."""

    def __init__(self) -> None:
        self._past: PastProgress | None = None

    @property
    def past(self) -> PastProgress | None:
        """What a later master must know; None before a round is over."""
        return self._past

    def learn(self, past: PastProgress) -> None:
        """Take over what an earlier master knew."""
        self._past = past

    def round_over(
        self, told: Collection[Progress], *, is_complete: bool, has_failed: bool
    ) -> None:
        """A round is over.

        Args:
            told: what its nodes said.
            is_complete: all of them did; of one that did not, the steps may have been new ones.
            has_failed: it is a failure that has ended it.
        """
        furthest = max((progress.furthest for progress in told), default=-1)
        before = self._past.furthest if self._past is not None else -1
        has_stepped = any(progress.has_stepped for progress in told)
        if furthest > before or (has_stepped and furthest < 0):
            self._past = PastProgress(max(furthest, before), 0)
        elif is_complete and has_failed:
            # The first round is no restart.
            idle = 0 if self._past is None else self._past.idle_restarts + 1
            self._past = PastProgress(before, idle)

    def exhausted(self, limit: int) -> str:
        """Return in words that so many restarts brought nothing; empty: they were fewer.

        Args:
            limit: how many restarts may; 0: any number.
        """
        if not limit or self._past is None or self._past.idle_restarts < limit:
            return ""
        beyond = f" beyond step {self._past.furthest}" if self._past.furthest >= 0 else ""
        restarts = "1 restart" if limit == 1 else f"{limit} consecutive restarts"
        return f"{restarts} without a step{beyond}: --max-no-progress {limit}"
