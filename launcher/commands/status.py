"""``ft-run status``: the state of a job, as a table or as JSON."""

import asyncio
import json
from typing import Any

from rich.table import Table
from rich.text import Text

from ... import exit_codes
from ...printable import printable
from ..cli.master_flags import StatusOptions
from ..reporting.standard_output import standard_output
from ..reporting.status_lines import data_waits, is_spare, pace, ranks, status_lines
from ..reporting.table_console import table_console
from .job_list import print_jobs
from .targets import Target, find_target, one_target
from .watch import require_terminal, watch


def show_status(options: StatusOptions) -> int:
    """Request the status and print it; return the exit code."""
    return asyncio.run(_show(options))


async def _show(options: StatusOptions) -> int:
    if options.watch:
        require_terminal()
        return await watch(await one_target(options), options)
    target = await find_target(options)
    is_list, status = target.is_list, {}
    if not is_list:
        async with target.calls(options) as calls:
            status = await calls.status()
    with standard_output():
        if options.json:
            print(json.dumps(_with_jobs(status, target, options), indent=2))
        elif is_list:
            print_jobs(target.jobs)
        else:
            _print_table(status)
    return exit_codes.SUCCESS


def _with_jobs(status: dict[str, Any], target: Target, options: StatusOptions) -> dict[str, Any]:
    if options.endpoint is not None or options.job:
        return status
    return status | {"jobs": [job.as_dict() for job in target.jobs]}


def _print_table(status: dict[str, Any]) -> None:
    console = table_console()
    for line in status_lines(status):
        console.print(printable(line), markup=False)
    if not status["nodes"]:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ["NODE", "HOST", "ADDRESS", "ROLE", "RANKS", "PHASE", "CONNECTED"]
    has_steps = any(node["workers"] for node in status["nodes"])
    for title in (*titles, *(("STEP", "STEPS/S") if has_steps else ())):
        table.add_column(title, overflow="fold")
    waits = data_waits(status["nodes"])
    if waits:
        table.add_column("DATA")
    for number, node in enumerate(status["nodes"]):
        cells = [*_cells(node, status, has_steps=has_steps), *waits[number : number + 1]]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)


def _cells(node: dict[str, Any], status: dict[str, Any], *, has_steps: bool) -> list[str]:
    return [
        "-" if node["node_rank"] < 0 else str(node["node_rank"]),
        node["host"],
        node["address"],
        node["role"],
        ranks(node),
        "spare" if is_spare(node, status) else node["phase"],
        "yes" if node["attached"] else "no",
        *(_steps(node["workers"]) if has_steps else ()),
    ]


def _steps(workers: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the step of a node's furthest rank, and its steps per second."""
    furthest = max(workers, key=lambda worker: int(worker["steps"]), default=None)
    return ("-", "-") if furthest is None else (str(furthest["steps"]), pace(furthest))
