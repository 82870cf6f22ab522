"""What the first worker of this node does; it stands for the node where its time is counted."""

from .worker_group import WorkerGroup

_TRIES = 3
"""A worker changes its page within a microsecond."""


class FirstWorker:
    """The worker with local rank 0, which may be several processes one after the other."""

    def __init__(self, group: WorkerGroup) -> None:
        """Start with the workers of a round, which were started now."""
        self._group = group
        self._pid = 0
        self._before: dict[str, float] = {}
        """The seconds of its earlier processes."""
        self._last: dict[str, float] = {}
        self._idle_s = 0.0
        self._has_exited = False

    def look(self, now: float) -> tuple[str, dict[str, float], float]:
        """Return the current phase, the seconds in each phase in this round, and its idle time.

        That is the training since its last progress, in seconds.

        Args:
            now: the time (``time.monotonic``). If it has exited, that was at the first ``now``
                since.
        """
        doing = ""
        watch = self._group.watches[0]
        if watch is None or self._has_exited:
            return doing, dict(self._last), self._idle_s
        self._has_exited = self._group.has_first_exited
        found = next(filter(None, (watch.phases(now) for _ in range(_TRIES))), None)
        if found is not None:
            pid, doing, seconds, self._idle_s = found
            if pid != self._pid:
                self._pid, self._before = pid, self._last
            names = self._before.keys() | seconds.keys()
            before = self._before
            self._last = {
                name: round(before.get(name, 0.0) + seconds.get(name, 0.0), 6) for name in names
            }
        return "" if self._has_exited else doing, dict(self._last), self._idle_s
