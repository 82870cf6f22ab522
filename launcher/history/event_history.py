"""The summary of a job and its last lines, from its events, for ``ft-run status``.

Events are only queued until a report is requested or the queue is full: a short job never converts
them to records.
"""

import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ...events.event import Event
from ...events.record import Record, json_value
from .recorder import Clocks, Recorder

if TYPE_CHECKING:
    from .job_summary import JobHistory

_WAITING_MAX: Final = 5_000
_LINES_KEPT: Final = 20
_RESTARTS_KEPT: Final = 5


class EventHistory:
    """Follows the events of this process."""

    def __init__(self, job: str, attempt: int, clocks: Clocks = Clocks()) -> None:  # noqa: B008 - a value
        """Start before the first event.

        Args:
            job: the id of the job.
            attempt: how often the scheduler has started this job again.
            clocks: the clocks of this host.
        """
        self._clocks = clocks
        self._waiting: deque[tuple[float, float, float, Event]] = deque()
        """Each with the times when it happened, in the order of ``Clocks``."""
        self._then = self._now()
        then = Clocks(lambda: self._then[0], lambda: self._then[1], lambda: self._then[2])
        self._recorder = Recorder(job, attempt, then)
        self._recorder.add(self._add)
        self._history: JobHistory | None = None
        self._lines: deque[dict[str, Any]] = deque(maxlen=_LINES_KEPT)

    def note(self, event: Event) -> None:
        """Queue an event, which happens now."""
        self._waiting.append((*self._now(), event))
        if len(self._waiting) > _WAITING_MAX:
            self._record_one()

    def report(self) -> str:
        """Return ``StatusReply.report``."""
        while self._waiting:
            self._record_one()
        summary = json_value(self._history.summary()) if self._history is not None else None
        report = {"time_s": self._clocks.wall(), "summary": summary, "events": [*self._lines]}
        return json.dumps(report, separators=(",", ":"))

    def _now(self) -> tuple[float, float, float]:
        return self._clocks.wall(), self._clocks.running(), self._clocks.boot()

    def _record_one(self) -> None:
        wall, running, boot, event = self._waiting.popleft()
        self._then = wall, running, boot
        self._recorder.event(event)

    def _add(self, record: Record) -> None:
        if self._history is None:
            from .job_summary import JobHistory

            self._history = JobHistory(_RESTARTS_KEPT)
        self._history.add(record)
        # The console leaves out debug events; nodes that join and leave belong in a status.
        if record["severity"] != "debug" or record["name"].startswith("node."):
            self._lines.append({key: record[key] for key in ("time", "name", "severity", "text")})
