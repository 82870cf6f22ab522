"""Where one rank is: its stack, short and without what differs from host to host. Values only."""

import enum
from typing import Annotated

from ...values import dataclass
from .bounded import OF_A_NODE, Count, CountOrNone, Length, Name, Ranks, Seconds

FRAMES_MAX = 50
TEXT_MAX = 200
"""Characters of a file's name, a function's name, a source line, a remark."""
_Text = Annotated[str, Length(TEXT_MAX)]
STACK_MAX_BYTES = 8 * 1024
"""Of one stack on the wire."""
REPORT_MAX_BYTES = 512 * 1024
"""Of all stacks of one node: two thirds of what the message of a node may have."""
STEPS_MAX = 999_999_999


class RankState(enum.Enum):
    """How the process of a rank answered when it was asked for its stack."""

    ANSWERED = 1
    """Its main thread's stack is known."""
    STOPPED = 2
    """By SIGSTOP or a debugger; it can answer nothing."""
    UNINTERRUPTIBLE = 3
    """In the kernel, where no signal reaches it (state D)."""
    SILENT = 4
    """It runs, but gave no stack in time: its main thread is in a state that handles no signal."""
    UNKNOWN = 5
    """It has no hook: not Python, or not started by ft-run's starter. Nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame."""

    file: _Text
    """As in a traceback; for a library from its package's folder on (``torch/nn/…``)."""
    line: Count
    function: _Text
    is_library: bool = False
    """In the standard library or in ``site-packages``: not the user's own code."""
    source: _Text = ""
    """The text of the line, stripped; empty where the file cannot be read."""


@dataclass(frozen=True, slots=True)
class RankStack:
    """Where a rank is."""

    rank: Count
    node_rank: CountOrNone
    host: Name
    state: RankState
    frames: Annotated[tuple[Frame, ...], Length(FRAMES_MAX)] = ()
    """Of the main thread, the innermost first; at most ``FRAMES_MAX``."""
    steps: CountOrNone = -1
    """Steps that it has finished in this round; -1 where none are counted."""
    remark: _Text = ""
    """What the kernel says of a process that did not answer: state, wchan, system call."""
    ticks: Count = 0
    """How often it has shown progress in this round, by a step or by saying so."""


@dataclass(frozen=True, slots=True)
class StackOrder:
    """The master asks where the workers of a node are now."""

    number: int


@dataclass(frozen=True, slots=True)
class StackReport:
    """Where they are."""

    number: Count
    """The order's."""
    stacks: Annotated[tuple[RankStack, ...], OF_A_NODE]
    """Of all workers of the node that have not exited."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Workers of a node are late: they have not shown progress for as long as the job allows."""

    round: Count
    ranks: Ranks
    idle_s: Seconds
    """How long ago the last of them did."""


@dataclass(frozen=True, slots=True)
class NoHang:
    """The master has looked, and the workers are not taken to hang: their time starts again."""

    round: int
    sentence: str
    """Why; empty where there is nothing to say, since they go on."""
