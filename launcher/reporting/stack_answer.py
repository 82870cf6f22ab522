"""The response of ``ft-run stacks``: JSON values, with the lines for display."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from ...events.record import json_value
from ...rendezvous.diagnosis.hang import stack_lines
from ...rendezvous.protocol.stacks import RankStack

Groups: TypeAlias = Sequence[tuple[Sequence[int], RankStack]]
"""The ranks that are at the same place, and the stack of the first; the smallest group first."""


def stacks_answer(round_number: int, groups: Groups, silent: Sequence[str]) -> dict[str, Any]:
    """Return the response as JSON values; ``round_number`` is -1 if no round runs."""
    lines = [f"{node}: no answer" for node in silent]
    if not groups:
        lines.append("none of the requested workers is running")
    for ranks, stack in groups:  # the largest is the last
        lines += stack_lines(tuple(ranks), stack)
    return {
        "round": round_number,
        "groups": [
            {
                "ranks": list(ranks),
                "node_rank": stack.node_rank,
                "host": stack.host,
                "state": stack.state.name.lower(),
                "steps": stack.steps,
                "remark": stack.remark,
                "frames": json_value(stack.frames),
            }
            for ranks, stack in groups
        ],
        "silent_nodes": list(silent),
        "lines": lines,
    }
