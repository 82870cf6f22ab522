"""Which rank hangs, and which wait for it: a verdict on the stacks of all ranks. Pure.

The stacks are those of ranks without progress. The checks, in this order:

1. a rank that is stopped, in uninterruptible sleep, or does not answer;
2. ranks that wait for no other rank, while others do: the smallest group, the fewest steps first;
3. ranks that wait for others at different places: a mismatch, both sides are named;
4. all wait at the same place: the network or the library.

A rank *waits for others* where its stack says so: a frame of ``torch.distributed`` or of a wrapper
that communicates (DDP, FSDP), the request of ``shared_work`` for a piece, the engine of the
backward pass, inside which gradients are reduced, or a line of the user's own that waits for
earlier asynchronous work (``work.wait()``, ``.item()`` on a GPU). Seen with gloo under torch 2.13;
``tests/rendezvous/diagnosis/dumps`` has the recordings.
"""

import enum
import re
from collections.abc import Iterable, Iterator, Sequence

from ...values import dataclass
from ..protocol.stacks import Frame, RankStack, RankState

_COMMUNICATES = ("torch/distributed/", "torch/nn/parallel/distributed.py")
_SHARES_WORK = ("ft_run/training/work_loop.py", "_next_piece")
"""Waits for pieces that other ranks are doing."""
_PASSED_OVER = frozenset({"wrapper", "_fn", "decorate_context", "inner"})
"""Functions around a collective that are not shown."""
_BACKWARD = "_engine_run_backward"
_WAITS = re.compile(r"\.(wait|synchronize|item|cpu|tolist|numpy)\(|store\w*(?:\(\))?\.(get)\(")
"""In a source line of the user: it may wait in C for work in which other ranks take part."""
_SILENT_STATES = {
    RankState.STOPPED: "is stopped",
    RankState.UNINTERRUPTIBLE: "is in uninterruptible sleep",
    RankState.SILENT: "does not answer",
}
_STATES = {
    RankState.STOPPED: "stopped",
    RankState.UNINTERRUPTIBLE: "in uninterruptible sleep",
    RankState.SILENT: "no answer",
    RankState.UNKNOWN: "not known",
}
_RUNS_MAX = 4


class HangKind(enum.Enum):
    """The kind of a hang, according to the stacks."""

    PROCESS = 1
    """A process cannot run or answer."""
    RANK = 2
    """Ranks are blocked by something local."""
    MISMATCH = 3
    """Ranks wait for each other in different collectives, or from different lines."""
    ALL = 4
    """All wait at the same place."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that are at the same place."""

    ranks: tuple[int, ...]
    stack: RankStack
    """The stack of the first of them."""


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """Which ranks hang, and why, in one clause."""

    kind: HangKind
    culprits: tuple[int, ...]
    """The ranks that the others wait for; in a mismatch the smaller side; in doubt all."""
    words: str
    groups: tuple[Group, ...]
    """All ranks grouped by position, the smallest group first."""


def group_stacks(stacks: Iterable[RankStack]) -> tuple[Group, ...]:
    """Group ranks that are at the same place; the smallest group first."""
    found: dict[tuple[object, ...], list[RankStack]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        found.setdefault((stack.state, _place(stack)), []).append(stack)
    groups = [Group(tuple(s.rank for s in same), same[0]) for same in found.values()]
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks)))


def judge(stacks: Sequence[RankStack], idle_s: float) -> HangVerdict:
    """Return which ranks hang.

    Args:
        stacks: of all ranks of the round, none of which makes progress; not empty.
        idle_s: how many seconds ago the last of them finished a step.
    """
    groups = group_stacks(stacks)
    steps = max(stack.steps for stack in stacks)
    since = f"no step for {idle_s:.0f} s" + (f" (step {steps})" if steps >= 0 else "")
    silent = [group for group in groups if group.stack.state in _SILENT_STATES]
    if silent:
        return _verdict(HangKind.PROCESS, groups, silent[:1], _silent_words(silent[0]), since)
    waiting = [group for group in groups if wait_of(group.stack) is not None]
    own = [group for group in groups if wait_of(group.stack) is None]
    if own and waiting:
        own.sort(key=lambda group: (len(group.ranks), group.stack.steps, group.ranks))
        words = f"{_named(own[0])} {_hangs(own[0])} {_where(own[0].stack)}"
        return _verdict(HangKind.RANK, groups, own[:1], words, since)
    if len(groups) > 1:
        first, second = groups[0], groups[-1]
        verb, other_verb = ("waits", "wait") if waiting else ("is", "are")
        words = (
            f"{_named(first)} {verb if len(first.ranks) == 1 else other_verb} "
            f"{_where(first.stack)}, but {_named(second)} "
            f"{verb if len(second.ranks) == 1 else other_verb} {_where(second.stack)}"
        )
        more = len(groups) - 2
        words += f", and ranks are at {more} other location(s)" if more else ""
        return HangVerdict(HangKind.MISMATCH, first.ranks, f"{words}; {since}", groups)
    (only,) = groups
    verb = "waits" if len(only.ranks) == 1 else "wait"
    verb = verb if waiting else _hangs(only)
    words = f"{_named(only)} {verb} {_where(only.stack)}; {since}"
    kind = HangKind.ALL if waiting else HangKind.RANK
    return HangVerdict(kind, only.ranks, words, groups)


def has_moved(before: RankStack, after: RankStack) -> bool:
    """Return whether a rank was at another line, even of a library, or has reported progress."""
    if (before.steps, before.ticks) != (after.steps, after.ticks):
        return True
    if RankState.SILENT in (before.state, after.state):
        return False  # the time between is unknown
    # A long evaluation is at one line of the user's most of the time, and moves in frames below it.
    # Code that polls in a library is at the line that waits.
    return (before.state, _lines(before)) != (after.state, _lines(after))


def _verdict(
    kind: HangKind, groups: tuple[Group, ...], culprits: list[Group], words: str, since: str
) -> HangVerdict:
    ranks = culprits[0].ranks
    others = [group for group in groups if group.ranks != ranks]
    waiting = [group for group in others if wait_of(group.stack) is not None]
    if waiting:
        most = waiting[-1]
        count = sum(len(group.ranks) for group in waiting)
        noun = "other rank waits" if count == 1 else "other ranks wait"
        words += f"; {count} {noun} for {'it' if len(ranks) == 1 else 'them'} "
        words += _where(most.stack)
    return HangVerdict(kind, ranks, f"{words}; {since}", groups)


def _place(stack: RankStack) -> tuple[object, ...]:
    """Return what identifies a place: the user's own frames, and the wait."""
    frames = [frame for frame in stack.frames if not frame.is_library] or list(stack.frames[:1])
    own = tuple((frame.file, frame.line, frame.function) for frame in frames)
    return (own, wait_of(stack), stack.remark)


def _lines(stack: RankStack) -> list[tuple[str, int, str]]:
    return [(frame.file, frame.line, frame.function) for frame in stack.frames]


def wait_of(stack: RankStack) -> str | None:
    """Return the name of the call in which a rank waits for others; None if it does not wait."""
    for frame in stack.frames:
        if not frame.is_library:
            if frame is stack.frames[0] and (found := _WAITS.search(frame.source)):
                return found.group(1) or found.group(2)
            return None
        if (frame.file, frame.function) == _SHARES_WORK:
            return "shared_work"
        if frame.function == _BACKWARD:
            return "backward"
        if frame.file.startswith(_COMMUNICATES) and frame.function not in _PASSED_OVER:
            return frame.function
    return None


def own_frame(stack: RankStack) -> Frame | None:
    """Return the innermost frame of the user's own code."""
    return next((frame for frame in stack.frames if not frame.is_library), None)


def _where(stack: RankStack) -> str:
    """Return the place in words: ``in all_reduce at train.py:88``."""
    own = own_frame(stack)
    wait = wait_of(stack)
    if not stack.frames:
        return "at an unknown location"
    if own is None:
        inner = stack.frames[0]
        return f"in {inner.function}() at {inner.file}:{inner.line}"
    if wait is not None:
        return f"in {wait} at {own.file}:{own.line}"
    inner = stack.frames[0]
    called = "" if inner is own else f", inside {inner.function}() of {inner.file}"
    return f"in {_function(own)} at {own.file}:{own.line}{called}"


def _function(frame: Frame) -> str:
    return frame.function if frame.function.startswith("<") else f"{frame.function}()"


def _hangs(group: Group) -> str:
    return "hangs" if len(group.ranks) == 1 else "hang"


def _named(group: Group) -> str:
    stack = group.stack
    if len(group.ranks) == 1:
        return f"rank {stack.rank} on node {stack.node_rank} ({stack.host})"
    return f"ranks {ranks_text(group.ranks)}"


def _silent_words(group: Group) -> str:
    what = _SILENT_STATES[group.stack.state]
    if len(group.ranks) > 1:
        what = what.replace("is ", "are ").replace("does ", "do ")
    remark = f" ({group.stack.remark})" if group.stack.remark else ""
    return f"{_named(group)} {what}{remark}"


def stack_lines(ranks: Sequence[int], stack: RankStack) -> Iterator[str]:
    """Yield the lines of a stack for a report, the innermost frame first."""
    named = ranks_text(ranks, len(ranks))
    head = f"ranks {named}"
    if len(ranks) == 1:
        head = f"rank {named} on node {stack.node_rank} ({stack.host})"
    steps = f" · step {stack.steps}" if stack.steps >= 0 else ""
    state = "" if stack.state is RankState.ANSWERED else f" · {_STATES[stack.state]}"
    remark = f" ({stack.remark})" if stack.remark else ""
    yield f"{head}{steps}{state}{remark}"
    for frame in stack.frames:
        source = f"  {frame.source}" if frame.source else ""
        yield f"  {frame.file}:{frame.line} {frame.function}{source}"


def ranks_text(ranks: Sequence[int], most: int = _RUNS_MAX) -> str:
    """Return ascending ranks as text, runs folded: ``0-3,7``; cut after ``most`` runs."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ",".join(texts[:most]) + (",…" if len(texts) > most else "")
