"""The answer of ``ft-run stacks``, as JSON values and as lines."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from ...events.record import json_value
from ...rendezvous.diagnosis.hang import stack_lines
from ...rendezvous.protocol.stacks import RankStack

Groups: TypeAlias = Sequence[tuple[Sequence[int], RankStack]]
"""The ranks that are at the same place, and the stack of the first; the smallest group first."""


def stacks_dict(round_number: int, groups: Groups, silent: Sequence[str]) -> dict[str, Any]:
    """Return the answer as JSON values.

    Args:
        round_number: -1 if no round runs.
        groups: the stacks.
        silent: the nodes that did not answer, in words.
    """
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
    }


def stacks_lines(groups: Groups, silent: Sequence[str]) -> Iterator[str]:
    """Yield readable lines; the largest group is the last."""
    for node in silent:
        yield f"{node}: no answer"
    if not groups:
        yield "none of the requested workers is running"
    for ranks, stack in groups:
        yield from stack_lines(tuple(ranks), stack)
