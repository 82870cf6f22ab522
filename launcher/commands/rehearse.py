"""``ft-run rehearse``: shows on the user's own script that recovery is exact."""

import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ... import exit_codes
from ...printable import printable
from ...values import dataclass
from ..rehearse_options import RehearseOptions
from .rehearsal_comparison import Comparison, Difference, History, Place, differing
from .rehearsal_jobs import Jobs, Record, Run

_LEAST_LIMIT_S = 60.0
_CAUSES = (
    "usual causes: a shuffle, augmentation or initialization without a seed, seeds of DataLoader"
    " workers, the clock, atomics on GPUs (torch.use_deterministic_algorithms)"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result."""

    name: str
    where: str = ""
    result: str = ""
    note: str = ""
    is_same: bool = True

    def __str__(self) -> str:
        line = f"{self.name:<21} {self.where:<24} {self.result:<16} {self.note}".rstrip()
        return printable(line)


def rehearse(options: RehearseOptions) -> int:
    """Rehearse a script; return the exit code."""

    def interrupt(number: int, _: object) -> None:
        raise _StoppedError(number)

    previous = {one: signal.signal(one, interrupt) for one in (signal.SIGINT, signal.SIGTERM)}
    folder = Path(tempfile.mkdtemp(prefix="ft-run-rehearsal-"))
    rehearsal = Rehearsal(options, Jobs(options, folder))
    try:
        status = rehearsal.run()
    except _StoppedError as stopped:
        status = exit_codes.SIGNAL_BASE + stopped.number
    finally:
        for one in previous:
            signal.signal(one, signal.SIG_IGN)
        rehearsal.jobs.end()
        shutil.rmtree(folder, ignore_errors=True)
        for one, handler in previous.items():
            signal.signal(one, handler)
    if options.json:
        rows = [{"row": row.name, "where": row.where, "result": row.result, "note": row.note,
                 "is_same": row.is_same} for row in rehearsal.rows]  # fmt: skip
        print(json.dumps({"exit_code": status, "rows": rows}, indent=2))
    return status


class _StoppedError(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Rehearsal:
    """The rows of one script."""

    def __init__(self, options: RehearseOptions, jobs: Jobs) -> None:
        self._options, self.jobs = options, jobs
        self.rows: list[Row] = []
        self._choices = random.Random(options.seed)  # noqa: S311 - no secret
        self._base = History(())
        self._order: dict[str, Any] = {
            "steps": options.steps,
            "keys": [],
            "end": None,
            "failures": [],
            "checkpoint_every": max(1, options.steps // 2),
        }

    def run(self) -> int:
        """Run all rows; return the exit code."""
        began_s = time.monotonic()
        first = self.jobs.run("undisturbed", self._order)
        self._base = History(first.records)
        places = self._base.order()
        if first.is_hung or any(first.statuses):
            return self._end_early(first, is_used=bool(self._base.keys))
        if not places:
            return self._without_checkpointer()
        self._order["keys"] = self._base.keys
        self._order["end"] = list(places[-1]) if len(places) == self._options.steps else None
        if self._order["end"] is None:
            self._order["steps"] = -1
        took_s = time.monotonic() - began_s
        self.jobs.limit_s = min(self._options.timeout_s, max(_LEAST_LIMIT_S, 5 * took_s))
        self.jobs.modules = tuple(self._base.last(0)["modules"])
        self._show(Row("undisturbed", _speed(first.records), _kinds(self._base)))
        comparison = self._again()
        self._disturb(comparison, places)
        if first.checkpoint:
            self._say(first.checkpoint)
        return int(not all(row.is_same for row in self.rows))

    def _end_early(self, run: Run, *, is_used: bool) -> int:
        why = (
            f"no step was completed for {self.jobs.limit_s:g} s"
            if run.is_hung
            else f"ended with exit code {run.statuses[-1]}"
        )
        if run.is_hung and not is_used:
            why += "; no Checkpointer was created"
        self._say(run.output)
        self._show(Row("undisturbed", result="FAILED", note=why, is_same=False))
        return exit_codes.USAGE if run.is_hung and not is_used else exit_codes.POLICY_ENDED_JOB

    def _without_checkpointer(self) -> int:
        self._say(
            "the script uses no Checkpointer, so nothing can be compared: see the guide"
            " Checkpoints; without one, a restarted script begins anew"
        )
        return exit_codes.USAGE

    def _again(self) -> Comparison:
        if "again" not in self._options.only:
            return Comparison(self._base, None, self._options.ignore)
        run = self.jobs.run("again", self._order)
        if self._failed("again", "", run):
            return Comparison(self._base, None, self._options.ignore)
        again = History(run.records)
        difference = Comparison(self._base).first(again)
        if difference is None:
            self._show(Row("again", result="the same bits"))
        else:
            self._show(Row("again", result="DIFFERS", note=str(difference), is_same=False))
            self._say(f"not deterministic ({_CAUSES}); restored states and samples are compared")
        return Comparison(self._base, again, self._options.ignore)

    def _disturb(self, comparison: Comparison, places: list[Place]) -> None:
        ranks = max(record["ranks"] for record in self._base.records)
        bodies, chosen = len(places), self._options.only

        def at(share: float) -> int:
            """Return the number of a body, odd: the state before it is that of an even number."""
            moved = self._choices.uniform(-0.1, 0.1) if self._options.seed is not None else 0.0
            return min(bodies - 1, max(3, int(bodies * (share + moved)) | 1))

        check = comparison.disturbed
        if "worker" in chosen:
            # With several Checkpointers, before the first step of the second one.
            second = [(key, 0) for key in self._base.keys[1:]]
            for place, rank in (([*second, places[at(0.8) - 1]][0], ranks - 1), (places[1], 0)):
                self._fail("worker killed", "worker", place, rank, check)
        if "stop" in chosen:
            self._fail("job stopped, new job", "stop", places[at(0.55) - 1], 0, check, jobs=2)
        if "kill" in chosen:
            self._fail("job killed, new job", "kill", places[at(0.75) - 1], 0, check, jobs=2)
        if "workers" in chosen:
            self._resize(comparison, places[at(0.45) - 1], ranks)
        if "node" in chosen and self._options.nodes > 1:
            place = places[at(0.6) - 1]
            self._fail("node killed, spare", "node", place, ranks - 1, check, spares=1)

    def _fail(
        self,
        name: str,
        kind: str,
        place: Place,
        rank: int,
        check: Callable[[History], Difference | None],
        *,
        jobs: int = 1,
        spares: int = 0,
    ) -> None:
        order = {**self._order, "failures": [[list(place), kind, rank]]}
        run = self.jobs.run(f"{kind}-{place[1]}", order, [None] * jobs, spares=spares)
        where = f"after step {place[1]}" if place[1] else f"before {os.path.basename(place[0])}"
        where += f", rank {rank}" if kind == "worker" else ""
        if self._failed(name, where, run):
            return
        history = History(run.records)
        difference = check(history)
        if difference is None:
            remark = f" ({run.remark})" if run.remark else ""
            self._show(Row(name, where, "the same bits", _cost(run.records, rank) + remark))
        else:
            self._show(Row(name, where, "DIFFERS", str(difference), is_same=False))

    def _resize(self, comparison: Comparison, place: Place, ranks: int) -> None:
        if not any(record.get("samples") is not None for record in self._base.records):
            return
        has_gpus = self._base.records[0]["has_gpus"]
        nodes = self._options.nodes
        count = ranks // nodes + (-1 if has_gpus else 1)
        if not count:
            return
        order = {**self._order, "failures": [[list(place), "stop", 0]]}
        run = self.jobs.run("workers", order, [None, count])
        name, where = f"{count * nodes} workers", f"from step {place[1]} on"
        if self._failed(name, where, run):
            return
        difference, weights = comparison.resized(History(run.records))
        if difference is None:
            self._show(Row(name, where, "the same samples", weights))
        else:
            self._show(Row(name, where, "DIFFERS", str(difference), is_same=False))

    def _failed(self, name: str, where: str, run: Run) -> bool:
        """Show a row whose jobs ended in another way than expected; return whether they did."""
        if not run.is_hung and not run.statuses[-1]:
            return False
        why = "hung" if run.is_hung else f"ended with exit code {run.statuses[-1]}"
        self._say(run.output)
        self._show(Row(name, where, "FAILED", f"the job {why}", is_same=False))
        return True

    def _show(self, row: Row) -> None:
        self.rows.append(row)
        self._say(str(row))

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr if self._options.json else sys.stdout, flush=True)


def _speed(records: Sequence[Record]) -> str:
    times = [one["time_s"] for one in records if not one["rank"] and not one.get("is_restored", 1)]
    gaps = [b - a for a, b in pairwise(times)]
    each = f", {statistics.median(gaps):.2g} s each" if gaps else ""
    return f"{len(times)} steps{each}"


def _kinds(base: History) -> str:
    """Return which objects are equal on all ranks, sharded, or each rank's own."""
    place = base.order()[-1]
    ends = [record for (_, where), record in base.bodies.items() if where == place]
    kinds: dict[str, list[str]] = {"equal on all ranks": [], "sharded": [], "each rank's own": []}
    for name in ends[0]["objects"]:
        if name.startswith("ft_run"):
            continue
        one = {name: ends[0]["objects"][name]}
        is_equal = all(not differing(one, {name: end["objects"].get(name, {})}) for end in ends)
        is_sharded = name in ends[0]["sharded"]
        kind = "sharded" if is_sharded else "equal on all ranks" if is_equal else "each rank's own"
        kinds[kind].append(name)
    return "; ".join(f"{', '.join(names)} {kind}" for kind, names in kinds.items() if names)


def _cost(records: Sequence[Record], rank: int) -> str:
    """Return how long the failed rank was away, and how many steps were done again."""
    found = []
    failed = next((record["time_s"] for record in records if "failed" in record), None)
    if failed is not None:
        after = [r["time_s"] for r in records if r.get("is_restored") and r["time_s"] > failed]
        if after:
            found.append(f"back in {min(after) - failed:.1f} s")
    bodies = [
        (record["key"], record["step"])
        for record in records
        if record["rank"] == rank and record.get("is_restored") is False
    ]
    again = len(bodies) - len(set(bodies))
    found.append(f"{again} step{'s' * (again != 1)} again")
    return ", ".join(found)
