"""The files of this node's events: the target of ``--events``, and files below ``--log-dir``."""

import os
from collections.abc import Callable

from ...events.event import EventsLost
from ..history.recorder import Recorder, line_of
from .background_writer import BackgroundWriter
from .display import Display
from .outlets import Outlet, RotatedFile, open_outlet

EVENTS, CONSOLE = "events.jsonl", "agent.log"
"""Names of the files below ``--log-dir``."""


class EventFiles:
    """Writes the events and the console lines of this node."""

    def __init__(self, display: Display, recorder: Recorder) -> None:
        self._display, self._recorder = display, recorder
        self._writers: list[BackgroundWriter] = []

    def open(self, target: str | None, folder: str | None) -> None:
        """Write to the target of ``--events`` and to files in ``folder``; raises ``UsageError``."""
        if target is not None:
            self._add_events(open_outlet(target), target)
        if folder is not None:
            self._add_folder(folder)

    def _add_folder(self, folder: str) -> None:
        self._add_events(RotatedFile(os.path.join(folder, EVENTS)), EVENTS)
        lines = self._writer(
            RotatedFile(os.path.join(folder, CONSOLE)),
            CONSOLE,
            lambda lost, reason: b"[%d lines lost: %s]\n" % (lost, reason.encode()),
        )
        self._display.copy = lambda text: lines.put(text.encode(errors="backslashreplace"))

    def close(self) -> None:
        """Write the waiting lines, within a few seconds."""
        for writer in self._writers:
            writer.close()

    def _add_events(self, outlet: Outlet, name: str) -> None:
        writer = self._writer(
            outlet,
            name,
            lambda lost, reason: line_of(self._recorder.record(EventsLost(lost, reason))),
        )
        self._recorder.add(lambda record: writer.put(line_of(record)))
        self._recorder.is_written = True

    def _writer(
        self, outlet: Outlet, name: str, lost_line: Callable[[int, str], bytes]
    ) -> BackgroundWriter:
        writer = BackgroundWriter(
            outlet, lost_line, lambda reason: self._display.warn_unrecorded(name, reason)
        )
        self._writers.append(writer)
        return writer
