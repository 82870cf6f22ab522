"""Types of the fields of messages, each with its bounds; ``bounds`` checks what arrives.

A master takes nothing that it could not send on, keep or show, so each number, text and list that
a node or a host sends has bounds, far above what an agent sends. They stand in its type:
``Annotated[int, Whole(0, 65535)]`` is an ``int`` for everything else. A number, text or list
without bounds is refused when its message is first checked.
"""

from typing import Annotated, Final

from ... import defaults
from ...values import dataclass

COUNT_MAX: Final = 999_999_999
"""As on the command line. A few steps more still fit any field of a message."""
BALLOT_MAX: Final = 2**62
"""Of numbers and terms of leases: in steps of ``acceptor._JUMP_MAX`` they are never used up."""
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
    """Bounds of a number that need not be whole: from 0 on."""

    most: float


@dataclass(frozen=True, slots=True)
class Finite:
    """Bounds of a setting, which may be infinite; admission refuses what else makes no sense."""

    most: float


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of a text, in characters, or of a list, in entries."""

    most: int
    is_name: bool = False
    """It goes to terminals and into the environment of workers as it is: printable only."""
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """How an option that must be the same on all nodes is called where it differs.

    Without this it is called by the name of its field: ``--max-restarts``, ``--restart-window in
    seconds``.
    """

    words: str


Unchecked = Annotated[int, "compared before anything else, and never kept"]
Count = Annotated[int, Whole(0, COUNT_MAX)]
CountOrNone = Annotated[int, Whole(-1, COUNT_MAX)]
"""-1 stands for none."""
Ballot = Annotated[int, Whole(0, BALLOT_MAX)]
ExitCode = Annotated[int, Whole(-255, 255)]
"""As ``subprocess`` has it."""
Workers = Annotated[int, Whole(0, 65_536)]
"""Of one node."""
Port = Annotated[int, Whole(0, 65_535)]
Age = Annotated[int, Whole(0, 999_999_999)]
"""In seconds: some thirty years; two of them still fit an unsigned field."""
Date = Annotated[int, Whole(0, 99_999_999_999)]
"""The year 5138: what is later cannot be shown as a date."""
Seconds = Annotated[float, Real(SECONDS_MAX)]
Setting = Annotated[float, Finite(SECONDS_MAX)]
Name = Annotated[str, Length(512, is_name=True)]
"""A host name has at most 253 characters."""
Names = Annotated[str, Length(4_096, is_name=True)]
"""Several, with commas."""
Reason = Annotated[str, Length(512, is_needed=True)]
ShortText = Annotated[str, Length(512)]
Text = Annotated[str, Length(4_096)]
"""Sentences, paths and rules."""
Report = Annotated[str, Length(256 * 1024)]
"""What one node has measured in a step of the checks: a few kB."""
Rules = Annotated[tuple[Text, ...], Length(1_000)]
Ages = Annotated[tuple[Age, ...], Length(10_000)]
"""Restarts that are remembered of a node, or of the job within its window."""
OF_A_NODE = Length(65_536)
"""Workers, at most."""
Ranks = Annotated[tuple[Count, ...], OF_A_NODE]
ErrorFile = Annotated[str, Length(defaults.ERROR_FILE_MAX_BYTES)]
ErrorText = Annotated[str, Length(2 * 4_096)]
StderrTail = Annotated[str, Length(defaults.STDERR_TAIL_MAX_BYTES)]
