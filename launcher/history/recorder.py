"""Creates a record of each event of this process: the node, the job, the time and the fields."""

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from msgspec import Struct

from ...events.event import Event, HostSuspended
from ...events.node import NodeStarted, ThisNodeRenamed
from ...events.record import VERSION, Record, fields_of
from ...printable import printable

_CONTROL = re.compile(r"[\x7f-\x9f]")
_SUSPENSION_MIN_S = 0.1
"""Two clocks that are read one after the other differ by less."""

Sink = Callable[[Record], None]


class Clocks(Struct, frozen=True):
    """The clocks of a host, each a function that returns seconds."""

    wall: Callable[[], float] = time.time
    running: Callable[[], float] = time.monotonic
    """Stops while the host is suspended."""
    boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    """Runs even while the host is suspended."""


class Recorder:
    """Passes the record of each event to its sinks."""

    def __init__(self, job: str, attempt: int = 0, clocks: Clocks = Clocks()) -> None:  # noqa: B008 - a value
        """``attempt`` is the number of times that the scheduler has restarted this job."""
        self.node = ""
        """The ID of this node; empty if not known yet."""
        self.job, self.attempt = job, attempt
        self._clocks = clocks
        self._round: int | None = None
        self._began = clocks.boot()
        self._suspended_s = self._began - clocks.running()
        self._sinks: list[tuple[Sink, frozenset[str] | None]] = []
        self.is_written = False
        """Whether the records are written to files."""

    def add(self, sink: Sink, names: frozenset[str] | None = None) -> None:
        """Pass the records of future events to ``sink``: of all, or only of those in ``names``."""
        self._sinks.append((sink, names))

    @property
    def uptime_s(self) -> float:
        """Seconds since this process started to record."""
        return round(self._clocks.boot() - self._began, 6)

    def event(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, NodeStarted):
            self.node = event.node_id
        elif isinstance(event, ThisNodeRenamed):
            self.node = event.given
        sinks = [sink for sink, names in self._sinks if names is None or event.name in names]
        if sinks:
            self.note_suspension()
            self._pass(event, sinks)

    def record(self, event: Event) -> Record:
        """Return the record of an event that happens now."""
        now, uptime_s = self._clocks.wall(), self.uptime_s
        fields = fields_of(event)
        self._round = fields.pop("round", self._round)
        return {
            "time": _written(now),
            "uptime_s": uptime_s,
            "name": event.name,
            "version": VERSION,
            "severity": event.severity.name.lower(),
            "job": self.job,
            "attempt": self.attempt,
            "node": self.node,
            "round": self._round,
            **{name: value for name, value in fields.items() if name != "severity"},
            "text": printable(str(event)),
        }

    def note_suspension(self) -> None:
        """Record that this host was suspended, if it was since the last event."""
        suspended_s = self._clocks.boot() - self._clocks.running()
        more_s, self._suspended_s = suspended_s - self._suspended_s, suspended_s
        if more_s >= _SUSPENSION_MIN_S:
            event = HostSuspended(more_s)
            self._pass(event, [s for s, names in self._sinks if not names or event.name in names])

    def _pass(self, event: Event, sinks: list[Sink]) -> None:
        record = self.record(event)
        for sink in sinks:
            sink(record)


def line_of(record: Record) -> bytes:
    """Return a record as a line of JSON in UTF-8."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    if not text.isprintable():  # characters that json does not escape may control a terminal
        text = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text.encode(errors="replace") + b"\n"


def attempt_of(environ: Mapping[str, str]) -> int:
    """Return how often the scheduler has restarted this job, from Slurm's variable; otherwise 0."""
    text = environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def _written(now: float) -> str:
    """Return a time in UTC in RFC 3339 format: ``2026-11-25T06:38:28.123456Z``."""
    return datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
