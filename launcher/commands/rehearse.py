"""``ft-run rehearse``: shows on the user's own script that recovery is exact."""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

from ... import exit_codes
from ...printable import printable, printable_lines
from ..cli.rehearse_flags import ROWS, RehearseOptions
from ..machine.nvml import has_driver
from .rehearsal_comparison import Comparison, History, Place, Record
from .rehearsal_jobs import Jobs, Run

Row = tuple[str, str, list[tuple[Place, int]], list[int | None], Callable[[History], str]]
"""Name for display, kind of the failures, step and rank of each, number of workers of each job
(None for the given number), and the comparison, which returns the first difference."""
_ALONE: Final = "restarts alone were tried: without a Checkpointer, nothing can be compared"


def rehearse(options: RehearseOptions) -> int:
    """Rehearse a script; return the exit code."""

    def stop(number: int, _: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(exit_codes.SIGNAL_BASE + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory(prefix="ft-run-rehearsal-", ignore_cleanup_errors=True) as at:
        jobs = Jobs(options, Path(at))
        try:
            return _Rehearsal(options, jobs).run()
        finally:
            jobs.end()


class _Rehearsal:
    """The rows of one script."""

    def __init__(self, options: RehearseOptions, jobs: Jobs) -> None:
        self._options, self._jobs, self._is_same = options, jobs, True
        most = options.steps // 2
        self._order: Record = {"steps": options.steps, "end": None, "failures": [], "most": most}

    def run(self) -> int:
        began_s = time.monotonic()
        first = self._jobs.run("undisturbed", self._order)
        base = History(first.records)
        if first.exit_code:
            self._show("undisturbed", _speed(base), first)
            return exit_codes.POLICY_ENDED_JOB
        if not base.places:
            return self._restart_only((time.monotonic() - began_s) / 2)
        last = base.bodies[0, base.places[-1]]
        objects = ", ".join(name for name in last["objects"] if not name.startswith("ft_run"))
        self._show("undisturbed", _speed(base), first, result=objects)
        is_cut = len(base.places) == self._options.steps
        self._order |= {"steps": 0, "end": base.places[-1] if is_cut else None}
        self._jobs.modules = last["modules"]
        rows = self._rows(Comparison(base, self._options.ignore), base.places, last)
        for row in ("again", *(self._options.only or ROWS)):
            if row in rows:
                self._run_row(row, rows[row])
        print(_sizes(base, self._jobs.checkpoints))
        return exit_codes.SUCCESS if self._is_same else exit_codes.WORKERS_FAILED

    def _restart_only(self, after_s: float) -> int:
        """Kill a worker of a script without a Checkpointer, which restarts or not."""
        run = self._jobs.run("restart", self._order | {"kill_after_s": after_s})
        self._show("worker killed", f"after {after_s:.1f} s", run, result="the job ended with 0")
        print(_ALONE)
        return exit_codes.USAGE

    def _rows(self, check: Comparison, places: Sequence[Place], last: Record) -> dict[str, Row]:
        nodes, ranks = int(self._options.nodes), last["ranks"]

        def at(share: float) -> Place:
            """Return a step with an odd number: checkpoints are saved at other steps."""
            return places[min(len(places), max(2, int(len(places) * share) | 1)) - 1]

        # With several Checkpointers, before the first step of the second one.
        late = [*((key, 0) for key, _ in places if key != places[0][0]), at(0.8)][0]
        two, same = [(at(0), 0), (late, ranks - 1)], check.first
        rows: dict[str, Row] = {
            "again": ("again", "", [], [None], check.again),
            "worker": ("worker killed", "worker", two, [None], same),
            "stop": ("job stopped, new job", "stop", [(at(0.55), 0)], [None, None], same),
            "kill": ("job killed, new job", "kill", [(at(0.75), 0)], [None, None], same),
        }
        if nodes > 1:
            rows["node"] = ("node killed, spare", "node", [(at(0.6), ranks - 1)], [None], same)
        count = ranks // nodes + (-1 if has_driver() else 1)
        if last["samples"] is not None and count:
            name, numbers = f"{count * nodes} workers", [None, count]
            rows["workers"] = (name, "stop", [(at(0.45), 0)], numbers, check.resized)
        return rows

    def _run_row(self, row: str, details: Row) -> None:
        name, kind, failures, workers, compare = details
        order = self._order | {"failures": [[*place, kind, rank] for place, rank in failures]}
        run = self._jobs.run(row, order, workers)
        steps = [
            f"step {n}" if n else f"before {os.path.basename(key)}" for (key, n), _ in failures
        ]
        where = "after " * bool(failures) + ", ".join(steps)
        difference = "" if run.exit_code else compare(History(run.records))
        self._is_same = self._is_same and not difference
        same = "the same samples" if row == "workers" else "the same bits"
        result, note = ("DIFFERS", difference) if difference else (same, _cost(run.records))
        self._show(name, where, run, result, note)

    def _show(self, name: str, where: str, run: Run, result: str = "", note: str = "") -> None:
        if run.exit_code:
            print(printable_lines(run.output))
            result, note = "FAILED", f"the job ended with exit code {run.exit_code}"
            self._is_same = False
        print(printable(f"{name:<21} {where:<24} {result:<16} {note}".rstrip()), flush=True)


def _speed(base: History) -> str:
    times = [base.bodies[0, place]["time_s"] for place in base.places]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return f"{len(times)} steps, {statistics.median(gaps or [0.0]):.2g} s each"


def _cost(records: Sequence[Record]) -> str:
    """Return how long the first failed rank was away, and how many steps were repeated."""
    run, failed_s = History(records), next((r["time_s"] for r in records if "failed" in r), None)
    if failed_s is None:
        return ""
    back_s = [one["time_s"] for one in run.states if one["is_restored"]]
    away_s = min((at for at in back_s if at > failed_s), default=failed_s) - failed_s
    again = sum(not one["rank"] and not one["is_restored"] for one in run.states) - len(run.places)
    return f"back in {away_s:.1f} s, {again} step{'s' * (again != 1)} again"


def _sizes(base: History, checkpoints: Sequence[str]) -> str:
    ends = [record for (_, place), record in base.bodies.items() if place == base.places[-1]]
    mb, gb = sum(end["snapshot_bytes"] for end in ends) / 1e6, ends[0]["available_bytes"] / 1e9
    return f"snapshots {mb:.3g} MB of {gb:.3g} GB · checkpoint {[*checkpoints, 'none'][0]}"
