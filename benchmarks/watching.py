"""Overhead of --watch-workers, or of all monitoring, on steps, restarts and an idle agent.

    python benchmarks/watching.py [--all] [--runs N] [--idle-s SECONDS] [--json FILE] [--quick]

Jobs with and without it run in alternation. See README.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import Summary, facts_line, machine_facts, number, summarize, table
from jobs import Launcher, Shape, environment
from rows import Sample, Settings, idle, restart

_STEPS = Path(__file__).with_name("steps.py")
_CALIBRATION_ROUNDS = 20_000


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, with and without watching."""

    title: str
    unit: str
    without: Summary | None
    watched: Summary | None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also --events, --metrics and --log-dir, and the time of a restart",
    )
    parser.add_argument("--runs", type=int, default=7, help="jobs of each kind (default 7)")
    parser.add_argument(
        "--idle-s", type=float, default=20.0, help="seconds to observe an idle agent (default 20)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument("--quick", action="store_true", help="smoke test: one short run")
    args = parser.parse_args(argv)
    runs, idle_s = (1, 1.0) if args.quick else (args.runs, args.idle_s)
    facts = machine_facts()
    print(facts_line(facts), flush=True)
    with tempfile.TemporaryDirectory(prefix="ft-run-bench-") as folder:
        options = ["--watch-workers"]
        if args.all:
            options += ["--metrics", "0", "--events", f"{folder}/e.jsonl", "--log-dir", folder]
        samples, rows = _measure(options, runs, idle_s, quick=args.quick, restarts=args.all)
    print(f"\n{_report(rows)}\n")
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": facts, "samples": samples}, indent=1) + "\n")
    return 0


def _measure(
    options: Sequence[str], runs: int, idle_s: float, *, quick: bool, restarts: bool
) -> tuple[dict[str, list[list[float]]], list[Row]]:
    rounds_per_us = _rounds_per_us()
    samples: dict[str, list[list[float]]] = {}
    rows: list[Row] = []
    for name, step_us, steps in (("100 us", 100, 20_000), ("10 ms", 10_000, 300)):
        rounds = int(step_us * rounds_per_us)
        found = _alternate(runs, _step_us(rounds, steps // (10 if quick else 1)), options)
        samples[name] = [[value for (value,) in kind] for kind in found]
        rows.append(_row(f"step of about {name}", "us", samples[name]))
    if restarts:
        title = "one node, 2 workers: restart"
        found = _alternate(3 * runs, _restart_ms, options)
        samples[title] = [[value for (value,) in kind] for kind in found]
        rows.append(_row(title, "ms", samples[title]))
    found = _alternate(runs, _idle(idle_s), options)
    for index, (title, unit) in enumerate(
        (
            ("idle agent and helpers: context switches", "/s"),
            ("idle agent and helpers: CPU", "%"),
        )
    ):
        samples[title] = [[values[index] for values in kind] for kind in found]
        rows.append(_row(title, unit, samples[title]))
    return samples, rows


def _alternate(
    runs: int, measure: Callable[[Sequence[str]], tuple[float, ...]], options: Sequence[str]
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    without: list[tuple[float, ...]] = []
    watched: list[tuple[float, ...]] = []
    for number_of_run in range(runs):
        # The order alternates: the first job may warm up the machine.
        for is_watched in (False, True) if number_of_run % 2 else (True, False):
            (watched if is_watched else without).append(measure(options if is_watched else ()))
    return without, watched


def _row(title: str, unit: str, samples: list[list[float]]) -> Row:
    return Row(title, unit, summarize(samples[0]), summarize(samples[1]))


def _report(rows: Sequence[Row]) -> str:
    lines = [("", "unit", "without", "watched", "difference", "minimum without", "watched")]
    for row in rows:
        if row.without is None or row.watched is None:
            continue
        before, after = row.without, row.watched
        lines.append(
            (
                row.title,
                row.unit,
                number(before.median),
                number(after.median),
                f"{after.median - before.median:+.3g}",
                number(before.minimum),
                number(after.minimum),
            )
        )
    return table(lines)


# --- a step -------------------------------------------------------------------------------------


def _rounds_per_us() -> float:
    """Return how many iterations of the loop in ``steps.py`` take a microsecond."""
    times = []
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(_CALIBRATION_ROUNDS):
            pass
        times.append(time.perf_counter() - started)
    return _CALIBRATION_ROUNDS / (min(times) * 1e6)


def _step_us(rounds: int, steps: int) -> Callable[[Sequence[str]], tuple[float, ...]]:
    """Return a function that measures the median step of one worker in microseconds."""

    def measure(options: Sequence[str]) -> tuple[float, ...]:
        command = [str(Launcher.FT_RUN.path), "--standalone", *options]
        done = subprocess.run(
            [*command, str(_STEPS), str(rounds), str(steps)],
            env=environment() | {"LOGLEVEL": "WARNING"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("median ")]
        return (float(line.split()[1]),)

    return measure


def _restart_ms(options: Sequence[str]) -> tuple[float, ...]:
    """Return the time from the death of a rank to the first lines of all restarted workers."""
    values = _values(restart, Shape(max_restarts=3, more=tuple(options)), Settings())
    return (1000 * values["time"],)


def _idle(seconds: float) -> Callable[[Sequence[str]], tuple[float, ...]]:
    """Return a function that measures context switches per second and CPU in percent."""

    def measure(options: Sequence[str]) -> tuple[float, ...]:
        values = _values(idle, Shape(more=tuple(options)), Settings(idle_s=seconds))
        return values["wakeups"], values["idle"]

    return measure


def _values(
    row: Callable[[Shape], Callable[[Launcher, Settings], Sample]], shape: Shape, settings: Settings
) -> dict[str, float]:
    sample = row(shape)(Launcher.FT_RUN, settings)
    if not sample.values:
        raise RuntimeError(f"the job failed: {sample.problems}\n{sample.log}")
    return sample.values


if __name__ == "__main__":
    sys.exit(main())
