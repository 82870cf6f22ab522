"""The list of the jobs of this host."""

from collections.abc import Sequence

from ...events.node import nodes_wanted
from ...printable import printable
from ..history.steps import is_late, rate
from ..reporting.live_status import duration
from .local_jobs import About, LocalJob

_TITLES = ("JOB", "PID", "NODE", "PHASE", "NODES", "RESTARTS", "STEP", "STEPS/S", "UP", "SCRIPT")


def print_jobs(jobs: Sequence[LocalJob]) -> None:
    """Print one line for each agent."""
    rows = [_TITLES, *(_row(job) for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _row(job: LocalJob) -> tuple[str, ...]:
    about = job.about
    if about is None:
        return ("-", str(job.pid), "-", "no answer", *["-"] * (len(_TITLES) - 4))
    wanted = nodes_wanted(about.min_nodes, about.max_nodes)
    cells = (
        job.job_id or "-",
        str(job.pid),
        about.node_id,
        about.phase,
        f"{about.nodes}/{wanted}",
        f"{about.restarts}/{about.max_restarts}",
        *_steps(about),
        duration(about.uptime_s),
        about.script,
    )
    return tuple(printable(str(cell)) for cell in cells)


def _steps(about: About) -> tuple[str, str]:
    if about.steps is None or about.steps_per_s is None or about.idle_s is None:
        return "-", "-"
    late = is_late(about.steps_per_s, about.idle_s)
    shown = f"none for {duration(about.idle_s)}" if late else rate(about.steps_per_s)
    return str(about.steps), shown
