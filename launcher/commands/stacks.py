"""``ft-run stacks``: the present stacks of all ranks of a job, grouped by position."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from ... import exit_codes
from ...printable import printable
from ...rendezvous.diagnosis.hang import stack_lines
from ...rendezvous.protocol.stacks import RankStack
from ..cli.master_flags import StacksOptions
from ..reporting.standard_output import standard_output
from .asking import ask_master


def show_stacks(options: StacksOptions) -> int:
    """Request the stacks and print them; return the exit status.

    Raises:
        RendezvousError: no master answers at the endpoint.
        UsageError: the answer cannot be written.
    """
    from ...protos import rendezvous_pb2 as pb
    from ...rendezvous.protocol.stacks import RankStack
    from ...rendezvous.transport.codec import from_part

    request = pb.StacksRequest(ranks=options.ranks)
    reply = asyncio.run(ask_master("Stacks", request, pb.StacksReply, options))
    groups = [(tuple(group.ranks), from_part(RankStack, group.stack)) for group in reply.groups]
    with standard_output():
        if options.json:
            print(json.dumps(_as_dict(reply.round, groups, list(reply.silent)), indent=2))
        else:
            for line in _lines(groups, list(reply.silent)):
                print(printable(line))
    return exit_codes.SUCCESS


def _as_dict(
    round_number: int, groups: list[tuple[tuple[int, ...], RankStack]], silent: list[str]
) -> dict[str, Any]:
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
                "frames": [
                    {
                        "file": frame.file,
                        "line": frame.line,
                        "function": frame.function,
                        "is_library": frame.is_library,
                        "source": frame.source,
                    }
                    for frame in stack.frames
                ],
            }
            for ranks, stack in groups
        ],
        "silent_nodes": silent,
    }


def _lines(groups: list[tuple[tuple[int, ...], RankStack]], silent: list[str]) -> Iterator[str]:
    """Yield readable lines; the largest group is the last."""
    for node in silent:
        yield f"{node}: no answer"
    if not groups:
        yield "none of the requested workers is running"
    for ranks, stack in groups:
        yield from stack_lines(ranks, stack)
