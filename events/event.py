"""What all events have: a text and a severity."""

import enum
from typing import Any

from msgspec import Struct


class Severity(enum.IntEnum):
    """How much an event matters; the numbers are those of ``logging``."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Event(Struct, frozen=True):
    """Something that happened. A subclass has fields, and ``line`` or ``__str__``."""

    name = ""
    """What files call it, e.g. ``node.joined``: never changed, unlike the name of the class."""
    line = ""
    """The text, as a template of ``str.format`` over the fields and properties."""
    is_finite = False
    """Whether its numbers are never infinite; infinity is null in JSON."""

    def __str__(self) -> str:
        """Return the text; control characters in the fields stay as they are."""
        return self.line.format_map(_Attributes(self))

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.INFO


class _Attributes:
    """The attributes of an event, as the mapping that a template is filled from."""

    __slots__ = ("_event",)

    def __init__(self, event: Event) -> None:
        self._event = event

    def __getitem__(self, name: str) -> Any:
        return getattr(self._event, name)


class RoundEvent(Event, frozen=True):
    """An event of this node in a round."""

    round: int
    node_rank: int

    @property
    def at(self) -> str:
        """How the text begins."""
        return f"round={self.round} node_rank={self.node_rank}"


class LogMessage(Event, frozen=True):
    """A message about the options, a file or a log."""

    sentence: str
    severity: Severity = Severity.INFO

    name = "log.message"
    line = "{sentence}"


class EventsLost(Event, frozen=True):
    """Lines before this one could not be written to the file, socket or pipe of ``--events``."""

    lines: int
    reason: str

    name = "events.lost"
    severity = Severity.WARNING
    line = "{lines} event(s) lost: {reason}"


class HostSuspended(Event, frozen=True):
    """This host was suspended, as its clocks show, at some time since the event before."""

    seconds: float

    name = "host.suspended"
    is_finite = True
    severity = Severity.DEBUG
    line = "this host was suspended for {seconds:.1f} s"
