"""The summary of a job and its last lines, from the events of this process.

Records wait until they are requested or the queue is full, so a short job never folds them.
"""

import json
import time
from collections import deque
from typing import Any, Final

from ...events.record import Record, json_value
from .job_summary import JobHistory

_WAITING_MAX: Final = 1_000
_LINES_KEPT: Final = 20
_RESTARTS_KEPT: Final = 5


class EventHistory:
    """Collects the records of this process."""

    def __init__(self) -> None:
        self._waiting: list[Record] = []
        self._history: JobHistory | None = None
        self._lines: deque[dict[str, Any]] = deque(maxlen=_LINES_KEPT)

    def add(self, record: Record) -> None:
        """Add the next record."""
        self._waiting.append(record)
        if len(self._waiting) > _WAITING_MAX:
            self.folded()

    @property
    def is_worth_folding(self) -> bool:
        """Whether there was a restart, or records were folded before."""
        restarts = (record["name"] == "restart.decided" for record in self._waiting)
        return self._history is not None or any(restarts)

    def folded(self) -> JobHistory:
        """Return the fold over all records."""
        if self._history is None:
            self._history = JobHistory(_RESTARTS_KEPT)
        for record in self._waiting:
            if record["name"] == "agent.renamed":
                self._history.renamed(record["proposed"], record["given"])
            self._history.add(record)
            # The console omits debug events; nodes that join and leave belong in a status.
            if record["severity"] != "debug" or record["name"].startswith("node."):
                shown = ("time", "name", "severity", "text")
                self._lines.append({key: record[key] for key in shown})
        self._waiting.clear()
        return self._history

    def report(self) -> str:
        """Return ``StatusReply.report``."""
        summary = self.folded().summary()
        known = json_value(summary) if summary.at_s is not None else None
        report = {"time_s": time.time(), "summary": known, "events": [*self._lines]}
        return json.dumps(report, separators=(",", ":"))
