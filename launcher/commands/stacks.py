"""``ft-run stacks``: the present stacks of all ranks of a job, grouped by position."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from ... import exit_codes
from ...errors import RendezvousError
from ...printable import printable
from ..cli.master_flags import StacksOptions
from ..reporting.standard_output import standard_output
from .asking import MasterCalls
from .targets import Target, one_target


def show_stacks(options: StacksOptions) -> int:
    """Request the stacks and print them; return the exit status.

    Raises:
        RendezvousError: there is no such job, or its master does not answer.
        UsageError: there are several jobs, or the answer cannot be written.
    """
    return asyncio.run(_show(options))


async def _show(options: StacksOptions) -> int:
    target = await one_target(options)
    answer, lines = await _ask(target, options)
    with standard_output():
        if options.json:
            print(json.dumps(answer, indent=2))
        else:
            for line in lines:
                print(printable(line))
    return exit_codes.SUCCESS


async def _ask(target: Target, options: StacksOptions) -> tuple[dict[str, Any], Sequence[str]]:
    """Return the answer as JSON values and as lines."""
    if target.job is not None:
        found = await target.job.ask(options.timeout_s, ask="stacks", ranks=[*options.ranks])
        answer = dict(found["stacks"])
        return answer, answer.pop("lines")
    from ...protos import rendezvous_pb2 as pb
    from ...rendezvous.protocol.stacks import RankStack
    from ...rendezvous.transport.codec import from_part
    from ..reporting.stack_answer import stacks_dict, stacks_lines

    assert target.endpoint is not None
    request = pb.StacksRequest(ranks=options.ranks)
    try:
        async with MasterCalls(target.endpoint, options.trust, options.timeout_s) as master:
            reply = await master.ask("Stacks", request, pb.StacksReply)
    except RendezvousError as error:
        raise target.not_found(error) from error
    groups = [(tuple(group.ranks), from_part(RankStack, group.stack)) for group in reply.groups]
    silent = list(reply.silent)
    return stacks_dict(reply.round, groups, silent), list(stacks_lines(groups, silent))
