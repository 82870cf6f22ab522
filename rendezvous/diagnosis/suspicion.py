"""Whether ranks that show no progress hang: what some looks at all stacks say together. Pure.

It is no hang where any rank has moved between two looks, where one is in a debugger, or in a call
that is known to take long (until ``--hang-timeout-start``), or where all were stopped by a signal:
that was done to the job, not by it. If other ranks do steps, only those that are late are judged,
and of these only ranks that have got on before and do not wait for others. If they only say that
they get on, as in an evaluation, nothing hangs: the others wait for them, in whatever way.
"""

from collections.abc import Mapping, Sequence

from ...values import dataclass, replace
from ..protocol.failure import Failure, hung
from ..protocol.stacks import Frame, RankStack, RankState
from .hang import (
    HangKind,
    HangVerdict,
    group_stacks,
    has_moved,
    judge,
    own_frame,
    stack_lines,
    wait_of,
)

STACKS_MAX_CHARS = 64 * 1024
"""Of the stacks of a hang, which every node is told."""

_IN_REPORT_CHARS = 4_000
_BY_DEBUGGER = "by a debugger"
_DEBUGGERS = ("pdb.py", "bdb.py", "IPython/", "ipdb/", "debugpy/", "_pydevd_bundle/")
_TAKE_LONG = (
    *("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/"),
    *("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py"),
    *("torch/_inductor/graph.py", "torch/_inductor/scheduler.py", "torch/_inductor/codegen/"),
    *("torch/_inductor/async_compile.py", "torch/utils/cpp_extension.py"),
)
"""Library files whose functions save, load or compile."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the looks say."""

    verdict: HangVerdict | None = None
    """Of a hang."""
    is_alone: bool = False
    """Other ranks get on."""
    words: str = ""
    """Why it is none; empty where there is nothing to say, since the ranks go on."""


_NOTHING = Finding()


def compare(
    looks: Sequence[Sequence[RankStack]],
    idle_s: Mapping[int, float],
    start_s: float,
) -> Finding:
    """Say whether ranks hang.

    Args:
        looks: the stacks of all ranks of a round, some seconds apart; two at least.
        idle_s: of the ranks that are late, how many seconds ago they got on.
        start_s: how long calls that are known to take long may take.
    """
    first = {stack.rank: stack for stack in looks[0]}
    if any({stack.rank for stack in look} != first.keys() for look in looks):
        return _NOTHING  # one has ended
    after, moved = _last_known(looks), _moved(looks)
    is_same = {stack.rank: first[stack.rank].ticks == stack.ticks for stack in after}
    moving = [stack for stack in after if not is_same[stack.rank]]
    are_stepping = any(first[stack.rank].steps != stack.steps for stack in moving)
    late = [stack for stack in after if stack.rank in idle_s and is_same[stack.rank]]
    if all(stack.state is RankState.UNKNOWN for stack in late):  # also if there is none
        return _NOTHING
    idle = min(idle_s[stack.rank] for stack in late)

    def excuse(stack: RankStack) -> str:
        return _excuse(stack.rank in moved, stack, idle < start_s)

    judged = list(after)
    if moving:
        judged = [
            stack
            for stack in late
            if are_stepping
            and stack.ticks
            and wait_of(stack) is None
            and stack.state is not RankState.UNKNOWN
            and not excuse(stack)
        ]
    if moving and not judged:
        return _slow(moving[0], "is moving", idle)
    if not moving:
        if len(after) > 1 and all(map(_is_stopped, after)):
            return Finding(words=f"no step for {idle:.0f} s, but all ranks are stopped by a signal")
        for stack in after:
            if words := excuse(stack):
                return _slow(stack, words, idle)
    return Finding(judge(judged, idle), is_alone=bool(moving))


def failure_of(verdict: HangVerdict, stacks: Sequence[RankStack]) -> Failure:
    """Return a hang as a failure.

    Args:
        verdict: on it.
        stacks: of all ranks.
    """
    culprits = [stack for stack in stacks if stack.rank in verdict.culprits]
    nodes = {stack.node_rank for stack in culprits}
    is_known = verdict.kind in (HangKind.PROCESS, HangKind.RANK) and len(nodes) == 1
    node_rank, host = (culprits[0].node_rank, culprits[0].host) if is_known else (None, "")
    return replace(
        hung(node_rank, host, "", verdict.words),
        rank=-1 if verdict.kind is HangKind.ALL else culprits[0].rank,
        stderr_tail=stacks_text(verdict, stacks, _IN_REPORT_CHARS),
    )


def stacks_text(
    verdict: HangVerdict, stacks: Sequence[RankStack], most_chars: int = STACKS_MAX_CHARS
) -> str:
    """Return where ranks are as text, those that hang first; cut where it is too long."""
    groups = sorted(group_stacks(stacks), key=lambda group: group.ranks[0] not in verdict.culprits)
    lines = [line for group in groups for line in stack_lines(group.ranks, group.stack)]
    text = "\n".join(lines)
    return text if len(text) <= most_chars else text[:most_chars].rpartition("\n")[0] + "\n…"


def _slow(stack: RankStack, what: str, idle_s: float) -> Finding:
    frame = own_frame(stack)
    where = f": {frame.file}:{frame.line}" if frame is not None else ""
    return Finding(words=f"no step for {idle_s:.0f} s, but rank {stack.rank} {what}{where}")


def _last_known(looks: Sequence[Sequence[RankStack]]) -> list[RankStack]:
    """Return the last stack of each rank; one that is only slow to answer answers some time."""
    last: dict[int, RankStack] = {}
    for stack in (stack for look in looks for stack in look):
        if stack.rank not in last or stack.state is not RankState.SILENT:
            last[stack.rank] = stack
    return list(last.values())


def _moved(looks: Sequence[Sequence[RankStack]]) -> set[int]:
    """Return the ranks that have moved between any two looks."""
    seen: dict[int, RankStack] = {}
    moved = set()
    for stack in (stack for look in looks for stack in look):
        if stack.rank in seen and has_moved(seen[stack.rank], stack):
            moved.add(stack.rank)
        if stack.rank not in seen or stack.state is not RankState.SILENT:
            seen[stack.rank] = stack
    return moved


def _excuse(has_moved: bool, after: RankStack, may_take_long: bool) -> str:
    """Return why a rank is not taken to hang; empty where nothing speaks against it."""
    if has_moved:
        return "is moving"
    if after.remark == _BY_DEBUGGER or _is_in(after.frames, _DEBUGGERS):
        return "is in a debugger"
    if may_take_long and _is_in(after.frames, _TAKE_LONG):
        return "is in a call that may take long"
    return ""


def _is_in(frames: Sequence[Frame], files: tuple[str, ...]) -> bool:
    return any(frame.is_library and frame.file.startswith(files) for frame in frames)


def _is_stopped(stack: RankStack) -> bool:
    return stack.state is RankState.STOPPED and stack.remark != _BY_DEBUGGER
