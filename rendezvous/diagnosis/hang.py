"""Which rank hangs, and which ranks wait for it: a verdict on the stacks of all ranks.

No I/O, no clock. The stacks are those of ranks without progress. The checks, in this order:

1. A rank is stopped, in uninterruptible sleep, or does not respond.
2. NCCL's records of collectives (``collectives``), if any is pending.
3. Ranks do not wait for another rank (``waits``), while others do: the smallest group, fewest steps
   first; on GPUs only if they are in a call outside torch that is known to block.
4. Ranks wait for others at different places: a mismatch; both sides are named.
5. All wait at the same place: the network or the library.

On GPUs, any other case is unknown: no rank is named, and no node is replaced.
``tests/rendezvous/diagnosis/dumps`` contains recordings of torch 2.13.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from ..protocol.stacks import Frame, RankStack, RankState
from .collectives import Evidence, Found, examine
from .waits import blocks, communicates, wait_of

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
    """A process cannot run or respond."""
    RANK = 2
    """Ranks are blocked locally."""
    MISMATCH = 3
    """Ranks wait for each other in different collectives, or from different lines."""
    ALL = 4
    """All wait at the same place."""
    UNKNOWN = 5
    """The hanging rank is unknown."""


class Group(Struct, frozen=True):
    """Ranks at the same place."""

    ranks: tuple[int, ...]
    stack: RankStack
    """Stack of the first of them."""


class HangVerdict(Struct, frozen=True):
    """The hanging ranks, and the reason in one clause."""

    kind: HangKind
    culprits: tuple[int, ...]
    """Ranks for which the others wait; the smaller side of a mismatch; all ranks if unknown."""
    words: str
    groups: tuple[Group, ...]
    """All ranks grouped by position, smallest group first."""


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
        stacks: stacks of all ranks of the round, none of which makes progress; not empty.
        idle_s: seconds since the last of them finished a step.
    """
    groups = group_stacks(stacks)
    steps = max(stack.steps for stack in stacks)
    since = f"no step for {idle_s:.0f} s" + (f" (step {steps})" if steps >= 0 else "")
    silent = [group for group in groups if group.stack.state in _SILENT_STATES]
    if silent:
        return _verdict(HangKind.PROCESS, groups, silent[:1], _silent_words(silent[0]), since)
    if (evidence := examine(stacks)) is not None and (
        verdict := _by_collectives(evidence, stacks, groups, since)
    ):
        return verdict
    waiting = [group for group in groups if wait_of(group.stack) is not None]
    own = [group for group in groups if wait_of(group.stack) is None]
    if len(stacks) > 1 and any(stack.uses_gpu for stack in stacks):
        own = [group for group in own if blocks(group.stack)]
        waiting = [group for group in groups if group not in own]
        if len(groups) > 1 and not own and not all(communicates(g.stack) for g in groups):
            return _unknown(groups, since)
    if own and waiting:
        own.sort(key=lambda group: (len(group.ranks), group.stack.steps, group.ranks))
        return _verdict(HangKind.RANK, groups, own[:1], _at(own[0], "hangs", "hang"), since)
    if len(groups) > 1:
        first, second = groups[0], groups[-1]
        verbs = ("waits", "wait") if waiting else ("is", "are")
        words = f"{_at(first, *verbs)}, but {_at(second, *verbs)}{_elsewhere(groups)}"
        return HangVerdict(HangKind.MISMATCH, first.ranks, f"{words}; {since}", groups)
    (only,) = groups
    verbs = ("waits", "wait") if waiting else ("hangs", "hang")
    words = f"{_at(only, *verbs)}; {since}"
    is_one = not waiting and (len(stacks) == 1 or not only.stack.uses_gpu)
    kind = HangKind.RANK if is_one else HangKind.ALL
    return HangVerdict(kind, only.ranks, words, groups)


def _by_collectives(
    evidence: Evidence, stacks: Sequence[RankStack], groups: tuple[Group, ...], since: str
) -> HangVerdict | None:
    """Return the verdict on NCCL's records; None if they are not conclusive."""
    by_rank = {stack.rank: stack for stack in stacks}
    ranks, operation = evidence.ranks, evidence.operation
    match evidence.found:
        case Found.UNRECORDED:
            return None
        case Found.MISSING:
            # A rank in an exchange without NCCL waits, too.
            alone = tuple(rank for rank in ranks if not communicates(by_rank[rank]))
            kind = HangKind.RANK if alone else HangKind.MISMATCH
            ranks = alone or ranks
            they, has = ("it", "has") if len(ranks) == 1 else ("they", "have")
            verb = _verb(ranks, "hangs", "hang") if alone else _verb(ranks, "waits", "wait")
            words = (
                f"{_ranks(ranks, by_rank)} {verb} {_where(by_rank[ranks[0]])}: {they} {has} not "
                f"entered {operation}, in which {_others(evidence.waiting)}"
            )
        case Found.DIFFERENT:
            kind = HangKind.MISMATCH
            words = (
                f"{_ranks(ranks, by_rank)} {_verb(ranks, 'waits', 'wait')} in {evidence.other}, "
                f"but {_ranks(evidence.waiting, by_rank)} "
                f"{_verb(evidence.waiting, 'waits', 'wait')} in {operation}"
            )
        case Found.CROSSED:
            kind = HangKind.MISMATCH
            words = (
                f"{_ranks(ranks, by_rank)} wait for each other in different collectives, "
                f"{_ranks(evidence.waiting[:1], by_rank)} in {operation}"
            )
        case Found.IN_FLIGHT:
            kind = HangKind.ALL
            words = (
                f"{_ranks(ranks, by_rank)} have all entered {operation}, which does not complete: "
                "the network, or the GPU of one of them"
            )
    return HangVerdict(kind, ranks, f"{words}; {since}", groups)


def _unknown(groups: tuple[Group, ...], since: str) -> HangVerdict:
    """Return that ranks are at several places, any of which can be that of the hanging rank."""
    first, second = groups[0], groups[-1]
    words = (
        f"it is not known which rank hangs: {_at(first, 'is', 'are')}, "
        f"{_at(second, 'is', 'are')}{_elsewhere(groups)}"
    )
    ranks = tuple(sorted(rank for group in groups for rank in group.ranks))
    return HangVerdict(HangKind.UNKNOWN, ranks, f"{words}; {since}", groups)


def _at(group: Group, one: str, many: str) -> str:
    return f"{_named(group)} {_verb(group.ranks, one, many)} {_where(group.stack)}"


def _elsewhere(groups: Sequence[Group]) -> str:
    more = len(groups) - 2
    return f", and ranks are at {more} other location(s)" if more else ""


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


def _ranks(ranks: Sequence[int], by_rank: Mapping[int, RankStack]) -> str:
    return _named(Group(tuple(ranks), by_rank[ranks[0]]))


def _others(ranks: Sequence[int]) -> str:
    return "1 other rank waits" if len(ranks) == 1 else f"{len(ranks)} other ranks wait"


def has_moved(before: RankStack, after: RankStack) -> bool:
    """Return whether a rank was at a different line, even of a library, or reported progress."""
    if (before.steps, before.ticks) != (after.steps, after.ticks):
        return True
    if RankState.SILENT in (before.state, after.state):
        return False  # unknown in between
    # A long evaluation mostly stays at one line of the user's code, and moves in frames below it.
    # Code that polls in a library stays at the line that waits.
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
    """Return the identity of a place: the user's own frames, and the wait."""
    frames = [frame for frame in stack.frames if not frame.is_library] or list(stack.frames[:1])
    own = tuple((frame.file, frame.line, frame.function) for frame in frames)
    return (own, wait_of(stack), stack.remark)


def _lines(stack: RankStack) -> list[tuple[str, int, str]]:
    return [(frame.file, frame.line, frame.function) for frame in stack.frames]


def own_frame(stack: RankStack) -> Frame | None:
    """Return the innermost frame of the user's own code."""
    return next((frame for frame in stack.frames if not frame.is_library), None)


def _where(stack: RankStack) -> str:
    """Return the place as text: ``in all_reduce at train.py:88``."""
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
    """Return ascending ranks as text with folded runs (``0-3,7``), cut after ``most`` runs."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ",".join(texts[:most]) + (",…" if len(texts) > most else "")
