"""The stack of one rank, short and without parts that differ between hosts."""

import enum
from typing import Annotated

from msgspec import Struct

from .bounds import OF_A_NODE, Count, CountOrNone, Length, LongText, Name, Ranks, Seconds, ShortText
from .collectives import RankCollectives

FRAMES_MAX = 50
TEXT_MAX = 200
"""Characters of a file name, a function name, a source line, a remark."""
_Text = Annotated[str, Length(TEXT_MAX)]
STACK_MAX_BYTES = 8 * 1024
"""Size of one stack in a message."""
REPORT_MAX_BYTES = 512 * 1024
"""Size of all stacks of one node: two thirds of the limit of a node's message."""
STEPS_MAX = 999_999_999


class RankState(enum.Enum):
    """How the process of a rank responded to the request for its stack."""

    ANSWERED = 1
    """Its main thread's stack is available."""
    STOPPED = 2
    """Stopped by SIGSTOP or a debugger; it cannot respond."""
    UNINTERRUPTIBLE = 3
    """In uninterruptible sleep in the kernel (state D)."""
    SILENT = 4
    """It is running, but sent no stack in time: its main thread does not handle signals."""
    UNKNOWN = 5
    """It has no hook: not Python, or not started by ft-run's starter. Its state is unknown."""


class Frame(Struct, frozen=True):
    """One Python frame."""

    file: _Text
    """As in a traceback; for a library the path from its package on (``torch/nn/…``)."""
    line: Count
    function: _Text
    is_library: bool = False
    """Whether it is in the standard library or in ``site-packages``."""
    source: _Text = ""
    """Source line, stripped; empty if the file cannot be read."""


class RankStack(Struct, frozen=True):
    """The stack of a rank, and its progress."""

    rank: Count
    node_rank: CountOrNone
    host: Name
    state: RankState
    frames: Annotated[tuple[Frame, ...], Length(FRAMES_MAX)] = ()
    """Frames of the main thread, innermost first; at most ``FRAMES_MAX``."""
    steps: CountOrNone = -1
    """Finished steps of this round; -1 if not counted."""
    remark: _Text = ""
    """Kernel's information on a process that did not respond: state, wchan, system call."""
    ticks: Count = 0
    """How often it has made progress in this round, by a step or an explicit report."""
    uses_gpu: bool = False
    """Whether it has a GPU open: if it waits for that, it may be waiting for other ranks."""
    collectives: RankCollectives | None = None
    """NCCL's records of it, if they were requested and are available."""
    note: ShortText = ""
    """The note that its failure would have (``Failure.note``)."""


class StackOrder(Struct, frozen=True):
    """The master's request for the stacks of a node's workers."""

    number: Count
    inquiry: Count = 0
    """If it is not 0, include NCCL's records as of the first order with this number. That takes
    some seconds; later reports contain them."""


class StackReport(Struct, frozen=True):
    """The stacks of a node's workers."""

    number: Count
    """Number of the order."""
    stacks: Annotated[tuple[RankStack, ...], OF_A_NODE]
    """Stacks of all workers of the node that have not exited."""


class Suspicion(Struct, frozen=True):
    """Workers of a node have made no progress for longer than the job allows."""

    round: Count
    ranks: Ranks
    idle_s: Seconds
    """Seconds since the last progress of any of them."""
    trial: ShortText = ""
    """Settings that ``--auto-tune on`` was trying; empty if none."""


class NoHang(Struct, frozen=True):
    """The master has examined the workers and found no hang: their time limit restarts."""

    round: Count
    sentence: LongText
    """Reason; empty if they make progress again."""
