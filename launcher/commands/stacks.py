"""``ft-run stacks``: the current stacks of all ranks of a job, grouped by position."""

import asyncio
import json

from ... import exit_codes
from ...printable import printable
from ..cli.master_flags import StacksOptions
from ..reporting.standard_output import standard_output
from .targets import one_target


def show_stacks(options: StacksOptions) -> int:
    """Request the stacks and print them; return the exit code."""
    return asyncio.run(_show(options))


async def _show(options: StacksOptions) -> int:
    target = await one_target(options)
    async with target.calls(options) as calls:
        answer = await calls.stacks(options.ranks)
    lines = answer.pop("lines")
    with standard_output():
        if options.json:
            print(json.dumps(answer, indent=2))
        else:
            for line in lines:
                print(printable(line))
    return exit_codes.SUCCESS
