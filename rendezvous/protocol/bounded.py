"""Types of message fields with their bounds; ``bounds`` checks incoming messages.

A master accepts only what it can forward, store and show, so that each number, text and list of a
node or host has bounds, far above the values of an agent. They are part of its type:
``Annotated[int, Whole(0, 65535)]`` is an ``int`` for everything else. The first check of a message
raises if a number, text or list has no bounds.
"""

from typing import Annotated, Final

from ... import defaults
from ...values import dataclass

COUNT_MAX: Final = 999_999_999
"""As on the command line. Slightly larger numbers still fit any field of a message."""
BALLOT_MAX: Final = 2**62
"""Limit of the numbers and terms of leases; steps of ``acceptor._JUMP_MAX`` never exhaust it."""
NODES_MAX: Final = 100_000
SECONDS_MAX: Final = 1e9
"""As on the command line."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Bounds of a whole number."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Real:
    """Bounds of a real number; the minimum is 0."""

    most: float


@dataclass(frozen=True, slots=True)
class Finite:
    """Bounds of a setting, which may be infinite; admission validates it further."""

    most: float


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of a text, in characters, or of a list, in entries."""

    most: int
    is_name: bool = False
    """Printable characters only, since it is used unchanged on terminals and in environments."""
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """The name of an option that must be the same on all nodes, in the error if it differs.

    Without this the name is that of its field: ``--max-restarts``, ``--restart-window in seconds``.
    """

    words: str


Unchecked = Annotated[int, "compared before anything else, and never kept"]
Count = Annotated[int, Whole(0, COUNT_MAX)]
CountOrNone = Annotated[int, Whole(-1, COUNT_MAX)]
"""-1: none."""
Ballot = Annotated[int, Whole(0, BALLOT_MAX)]
ExitCode = Annotated[int, Whole(-255, 255)]
"""As in ``subprocess``: negative for a signal."""
Workers = Annotated[int, Whole(0, 65_536)]
"""The number of workers of one node."""
Port = Annotated[int, Whole(0, 65_535)]
Age = Annotated[int, Whole(0, 999_999_999)]
"""In seconds, up to some thirty years; the sum of two still fits an unsigned field."""
Date = Annotated[int, Whole(0, 99_999_999_999)]
"""Up to the year 5138: a later time cannot be shown as a date."""
Seconds = Annotated[float, Real(SECONDS_MAX)]
Setting = Annotated[float, Finite(SECONDS_MAX)]
Name = Annotated[str, Length(512, is_name=True)]
"""A host name has at most 253 characters."""
Names = Annotated[str, Length(4_096, is_name=True)]
"""Several names, separated by commas."""
Reason = Annotated[str, Length(512, is_needed=True)]
ShortText = Annotated[str, Length(512)]
Text = Annotated[str, Length(4_096)]
"""Sentences, paths and rules."""
Report = Annotated[str, Length(256 * 1024)]
"""The measurements of one node in a step of the checks: a few kB."""
Rules = Annotated[tuple[Text, ...], Length(1_000)]
Ages = Annotated[tuple[Age, ...], Length(10_000)]
"""The ages of the recorded restarts of a node, or of the job within its window."""
OF_A_NODE = Length(65_536)
"""The maximum number of workers."""
Ranks = Annotated[tuple[Count, ...], OF_A_NODE]
ErrorFile = Annotated[str, Length(defaults.ERROR_FILE_MAX_BYTES)]
ErrorText = Annotated[str, Length(2 * 4_096)]
StderrTail = Annotated[str, Length(defaults.STDERR_TAIL_MAX_BYTES)]
