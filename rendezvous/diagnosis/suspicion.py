"""Whether ranks without progress hang, decided by several samples of all stacks. No I/O, no clock.

It is not a hang if any rank has moved between two samples, if one is in a debugger or in a call
that is known to take long (until ``--hang-timeout-start``), or if all ranks are stopped by a
signal, which came from outside the job. If other ranks do steps, only late ranks are examined, and
of these only ranks that have made progress before and do not wait for others. If the other ranks
report progress without steps, as in an evaluation, nothing hangs: the late ranks wait for them.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..protocol.failure import Failure, hung
from ..protocol.stacks import Frame, RankStack, RankState
from .hang import (
    HangKind,
    HangVerdict,
    group_stacks,
    has_moved,
    judge,
    own_frame,
    ranks_text,
    stack_lines,
)
from .waits import wait_of

STACKS_MAX_CHARS = 64 * 1024
"""Limit for the stacks of a hang, which are sent to every node."""

_IN_REPORT_CHARS = 4_000
_REASONS_MAX = 4
_BY_DEBUGGER = "by a debugger"
_DEBUGGERS = ("pdb.py", "bdb.py", "IPython/", "ipdb/", "debugpy/", "_pydevd_bundle/")
_TAKE_LONG = (
    *("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/"),
    *("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py"),
    *("torch/_inductor/graph.py", "torch/_inductor/scheduler.py", "torch/_inductor/codegen/"),
    *("torch/_inductor/async_compile.py", "torch/utils/cpp_extension.py"),
)
"""Library files whose functions save, load or compile."""


class Finding(Struct, frozen=True):
    """Result of the samples."""

    verdict: HangVerdict | None = None
    """The verdict, if ranks hang."""
    is_alone: bool = False
    """Whether other ranks make progress."""
    words: str = ""
    """Why it is not a hang; empty if the ranks make progress again."""


_NOTHING = Finding()


class _Rank(Struct, frozen=True):
    """One rank in all samples."""

    stack: RankStack
    """Its last stack; a rank that is slow to respond has one in some sample."""
    has_moved: bool
    """Whether it changed its place, or reported progress, between any two samples."""
    gets_on: bool
    """Whether it has reported progress since the first sample."""
    has_stepped: bool
    """Whether it has done a step since then."""


def compare(
    looks: Sequence[Sequence[RankStack]],
    idle_s: Mapping[int, float],
    start_s: float,
) -> Finding:
    """Return whether ranks hang.

    Args:
        looks: at least two samples of the stacks of all ranks of a round, some seconds apart.
        idle_s: seconds since the last progress of each late rank.
        start_s: time limit for calls that are known to take long.
    """
    numbers = {stack.rank for stack in looks[0]}
    if any({stack.rank for stack in look} != numbers for look in looks):
        return _NOTHING  # a rank has ended
    ranks = _together(looks)
    late = [one for one in ranks if one.stack.rank in idle_s and not one.gets_on]
    if all(one.stack.state is RankState.UNKNOWN for one in late):  # even if no rank is late
        return _NOTHING
    idle = min(idle_s[one.stack.rank] for one in late)
    may_take_long = idle < start_s
    if any(one.gets_on for one in ranks):
        return _beside_others(ranks, late, idle, may_take_long)
    return _all_alike(ranks, idle, may_take_long)


def _beside_others(
    ranks: Sequence[_Rank], late: Sequence[_Rank], idle: float, may_take_long: bool
) -> Finding:
    if any(one.gets_on and one.has_stepped for one in ranks):
        judged = [
            one.stack
            for one in late
            if one.stack.ticks
            and wait_of(one.stack) is None
            and one.stack.state is not RankState.UNKNOWN
            and not _why_no_hang(one, may_take_long)
        ]
        if judged:
            return Finding(judge(judged, idle), is_alone=True)
    first = next(one for one in ranks if one.gets_on)
    return _slow(first.stack, "is making progress", idle)


def _all_alike(ranks: Sequence[_Rank], idle: float, may_take_long: bool) -> Finding:
    if len(ranks) > 1 and all(_is_stopped(one.stack) for one in ranks):
        return Finding(words=f"no step for {idle:.0f} s, but all ranks are stopped by a signal")
    for one in ranks:
        if words := _why_no_hang(one, may_take_long):
            return _slow(one.stack, words, idle)
    return Finding(judge([one.stack for one in ranks], idle))


def failure_of(verdict: HangVerdict, stacks: Sequence[RankStack]) -> Failure:
    """Return a hang as a failure."""
    culprits = [stack for stack in stacks if stack.rank in verdict.culprits]
    nodes = {stack.node_rank for stack in culprits}
    is_known = verdict.kind in (HangKind.PROCESS, HangKind.RANK) and len(nodes) == 1
    node_rank, host = (culprits[0].node_rank, culprits[0].host) if is_known else (None, "")
    is_one = is_known and len(culprits) == 1
    return replace(
        hung(node_rank, host, "", verdict.words),
        rank=-1 if verdict.kind in (HangKind.ALL, HangKind.UNKNOWN) else culprits[0].rank,
        note=culprits[0].note if is_one else "",
        stderr_tail=stacks_text(verdict, stacks, _IN_REPORT_CHARS),
    )


def stacks_text(
    verdict: HangVerdict, stacks: Sequence[RankStack], most_chars: int = STACKS_MAX_CHARS
) -> str:
    """Return the stacks as text, hanging ranks first; cut if it is too long.

    It starts with ranks whose collectives are not recorded completely.
    """
    groups = sorted(group_stacks(stacks), key=lambda group: group.ranks[0] not in verdict.culprits)
    lines = list(_unrecorded(stacks))
    lines += (line for group in groups for line in stack_lines(group.ranks, group.stack))
    text = "\n".join(lines)
    return text if len(text) <= most_chars else text[:most_chars].rpartition("\n")[0] + "\n…"


def _unrecorded(stacks: Sequence[RankStack]) -> Iterator[str]:
    reasons: dict[str, list[int]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        if stack.collectives is not None and stack.collectives.unseen:
            reasons.setdefault(stack.collectives.unseen, []).append(stack.rank)
    for reason, ranks in sorted(reasons.items())[:_REASONS_MAX]:
        named = f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}"
        yield f"{named} may wait in an operation that is not recorded: {reason}"


def _slow(stack: RankStack, what: str, idle_s: float) -> Finding:
    frame = own_frame(stack)
    where = f": {frame.file}:{frame.line}" if frame is not None else ""
    return Finding(words=f"no step for {idle_s:.0f} s, but rank {stack.rank} {what}{where}")


def _together(looks: Sequence[Sequence[RankStack]]) -> list[_Rank]:
    first = {stack.rank: stack for stack in looks[0]}
    last, moved = dict(first), set()
    for stack in (stack for look in looks[1:] for stack in look):
        if has_moved(last[stack.rank], stack):
            moved.add(stack.rank)
        if stack.state is not RankState.SILENT:
            last[stack.rank] = stack
    return [
        _Rank(
            stack,
            has_moved=rank in moved,
            gets_on=stack.ticks != first[rank].ticks,
            has_stepped=stack.steps != first[rank].steps,
        )
        for rank, stack in last.items()
    ]


def _why_no_hang(one: _Rank, may_take_long: bool) -> str:
    """Return why a rank does not count as hanging; empty if it may hang."""
    if one.has_moved:
        return "is making progress"
    if one.stack.remark == _BY_DEBUGGER or _is_in(one.stack.frames, _DEBUGGERS):
        return "is in a debugger"
    if may_take_long and _is_in(one.stack.frames, _TAKE_LONG):
        return "is in a call that may take a long time"
    return ""


def _is_in(frames: Sequence[Frame], files: tuple[str, ...]) -> bool:
    return any(frame.is_library and frame.file.startswith(files) for frame in frames)


def _is_stopped(stack: RankStack) -> bool:
    return stack.state is RankState.STOPPED and stack.remark != _BY_DEBUGGER
