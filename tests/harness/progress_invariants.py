"""``--max-no-progress`` as a bystander sees it, who knows of every step that was done."""

from collections import defaultdict

from ft_run.rendezvous.protocol.claim import Progress
from ft_run.rendezvous.protocol.messages import Verdict

_World = tuple[int, str]
"""Number of a round, and the master that formed it."""


class ProgressError(AssertionError):
    """A job was ended that got on, or one was not that did not."""


class ProgressWatch:
    """What nodes did in each world, and what one master has heard of that."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._got_on: set[_World] = set()
        self._furthest: defaultdict[_World, int] = defaultdict(lambda: -1)
        self.new_master()

    def new_master(self) -> None:
        """Another master: it may know less."""
        self._world: _World | None = None
        self._nodes = 0
        self._heard: dict[str, Progress] = {}
        self._failed: list[_World] = []
        self._idle = 0
        """How many rounds running have failed, all nodes of which said that they did no step."""

    def came(self, world: _World, progress: Progress) -> None:
        """The workers of a node have come so far."""
        before = max((f for w, f in self._furthest.items() if w != world), default=-1)
        self._furthest[world] = max(self._furthest[world], progress.furthest)
        if progress.furthest > before or (progress.has_stepped and progress.furthest < 0):
            self._got_on.add(world)

    def heard(self, number: int, node_id: str, progress: Progress | None) -> None:
        """A node of the round tells a master."""
        if self._world is not None and number == self._world[0] and progress is not None:
            self._heard.setdefault(node_id, progress)

    def formed(self, world: _World, nodes: int, *, has_failed: bool) -> None:
        """The next round begins."""
        is_idle = len(self._heard) == self._nodes > 0 and not any(
            progress.has_stepped for progress in self._heard.values()
        )
        self._idle = self._idle + 1 if has_failed and is_idle else 0
        if self._limit and self._idle > self._limit:
            raise ProgressError(f"{self._idle} rounds running failed without a step")
        if has_failed and self._world is not None:
            self._failed.append(self._world)
        self._world, self._nodes, self._heard = world, nodes, {}

    def ended(self, verdict: Verdict) -> bool:
        """The job is over; return whether it was for want of progress."""
        if "--max-no-progress" not in verdict.sentence:
            return False
        last = [*self._failed, self._world][-self._limit :]
        if not self._limit or self._got_on & set(last):
            raise ProgressError(f"the job got on in {last}, and still: {verdict.sentence}")
        return True
