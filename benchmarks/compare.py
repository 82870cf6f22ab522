"""Compares ft-run and torchrun, in alternation in one run.

    python benchmarks/compare.py [--runs N] [--rows start-1,restart-4] [--json FILE] [--quick]

Both must be installed beside the Python that runs it. See README.md.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from figures import Summary, facts_line, machine_facts, number, ratio, summarize, table
from jobs import Launcher, bare_start_s
from rows import Metric, Row, Sample, Settings, all_rows


@dataclass(slots=True)
class Measured:
    """All samples of one row."""

    row: Row
    samples: dict[Launcher, list[Sample]] = field(
        default_factory=lambda: {launcher: [] for launcher in Launcher}
    )

    def summary(self, launcher: Launcher, metric: Metric) -> Summary | None:
        """Return the summary of one metric over the successful runs."""
        samples = self.samples[launcher]
        return summarize([s.values[metric.key] for s in samples if metric.key in s.values])

    def failures(self) -> list[str]:
        """Return one line for each failed run."""
        return [
            f"{self.row.key}, run {index} of {launcher.value}: {'; '.join(sample.problems)}"
            for launcher, samples in self.samples.items()
            for index, sample in enumerate(samples, 1)
            if sample.problems
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a run of ft-run failed, 2 for a usage error."""
    args = _arguments(argv)
    settings = Settings(idle_s=2.0, settle_s=1.0) if args.quick else Settings(idle_s=args.idle_s)
    rows = _chosen(all_rows(1.0 if args.quick else None), args.rows)
    facts = machine_facts()
    print(facts_line(facts), flush=True)
    if not args.quick:
        _warm_up(settings)
    baseline = {n: summarize([bare_start_s(n) for _ in range(args.runs)]) for n in (2, 4)}
    results = []
    for row in rows:
        runs = 1 if args.quick else min(args.runs, row.runs or args.runs)
        results.append(_measure(row, runs, settings))
    print(f"\n{report(results)}\n")
    for workers, bare in baseline.items():
        seconds = number(bare.median if bare else None)
        print(f"baseline: {workers} workers without a launcher: {seconds} s to their first line")
    failures = [sentence for measured in results for sentence in measured.failures()]
    for sentence in failures:
        print(f"FAILED: {sentence}")
    if args.json is not None:
        bare_s = {workers: bare.median for workers, bare in baseline.items() if bare}
        content = as_json(results, facts) | {"floor_s": bare_s}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    ours = [s for measured in results for s in measured.samples[Launcher.FT_RUN]]
    return 1 if any(sample.problems for sample in ours) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    keys = ",".join(row.key for row in all_rows(None))
    parser.add_argument("--runs", type=_positive, default=7, help="runs of each row (default 7)")
    parser.add_argument("--rows", metavar="ROW,...", help=f"default: {keys}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument(
        "--idle-s",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds to observe an idle launcher (default 20)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="smoke test: one short run of each row"
    )
    args = parser.parse_args(argv)
    unknown = set(args.rows.split(",")) - set(keys.split(",")) if args.rows else set()
    if unknown:
        parser.error(
            f"invalid value {','.join(sorted(unknown))!r} for --rows: expected some of {keys}"
        )
    for launcher in Launcher:
        if not launcher.path.exists():
            parser.error(f"{launcher.value} is not installed beside {sys.executable}")
    return args


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _chosen(rows: list[Row], wanted: str | None) -> list[Row]:
    return [row for row in rows if wanted is None or row.key in wanted.split(",")]


def _warm_up(settings: Settings) -> None:
    """Run each launcher once, so that its files are in the page cache."""
    for launcher in Launcher:
        all_rows(None)[0].measure(launcher, settings)


def _measure(row: Row, runs: int, settings: Settings) -> Measured:
    measured = Measured(row)
    for index in range(runs):
        for launcher in row.launchers:
            sample = row.measure(launcher, settings)
            measured.samples[launcher].append(sample)
            first = row.metrics[0]
            value = number(sample.values.get(first.key))
            result = f"{value} {first.unit}" if sample.values else f"FAILED {sample.problems}"
            print(f"  {row.key} {index + 1}/{runs} {launcher.value}: {result}", flush=True)
            if sample.log:
                print(sample.log, file=sys.stderr)
    return measured


def report(results: Sequence[Measured]) -> str:
    """Return the table: per metric the medians, the minima, their ratio and the target."""
    lines = [
        [
            "metric",
            "torchrun median",
            "min",
            "ft-run median",
            "min",
            "ratio",
            "target",
            "met",
            "runs",
        ]
    ]
    for measured in results:
        for metric in measured.row.metrics:
            theirs = measured.summary(Launcher.TORCHRUN, metric)
            ours = measured.summary(Launcher.FT_RUN, metric)
            met = metric.target.is_met(ours, theirs) if metric.target else None
            total = sum(map(len, measured.samples.values()))
            lines.append(
                [
                    f"{metric.title} ({metric.unit})",
                    number(theirs.median if theirs else None),
                    number(theirs.minimum if theirs else None),
                    number(ours.median if ours else None),
                    number(ours.minimum if ours else None),
                    number(ratio(ours, theirs), 2),
                    metric.target.text() if metric.target else "",
                    "" if met is None else ("yes" if met else "NO"),
                    f"{theirs.count if theirs else 0}+{ours.count if ours else 0} of {total}",
                ]
            )
    return table(lines)


def as_json(results: Sequence[Measured], facts: dict[str, object]) -> dict[str, object]:
    """Return all samples as JSON, by row and launcher."""
    rows = {
        measured.row.key: {
            launcher.value: [asdict(sample) for sample in samples]
            for launcher, samples in measured.samples.items()
        }
        for measured in results
    }
    return {"machine": facts, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
