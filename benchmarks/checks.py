"""Duration and verdicts of repeated checks of several nodes on this machine.

    python benchmarks/checks.py [--nodes 1,2,8] [--runs N] [--busy K] [--json FILE]

All nodes are healthy: each rejected node is a false positive. See README.md.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from figures import counts, facts_line, machine_facts, number, summarize, table
from jobs import Launcher, ended, environment, free_port

LIMIT_S = 120.0
HARMLESS = ("passed", "slow")
"""Verdicts that accept a node; ``slow`` is a warning."""
TARGETS_S = {2: 3.0, 8: 6.0}
"""Targets for a light check in addition to the import of torch, by number of nodes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One check and, just before it, the same number of processes that only import torch."""

    check_s: float
    """From the first command to the exit of the last node."""
    import_s: float | None
    """One process per node, all at once, that only imports torch; None: not measured."""
    verdicts: dict[str, str] = field(default_factory=dict)
    """By node."""
    problems: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a node was rejected or a check failed."""
    args = _arguments(argv)
    facts = machine_facts()
    print(facts_line(facts), flush=True)
    samples: dict[int, list[Sample]] = {}
    with _busy(args.busy):
        for nodes in args.nodes:
            samples[nodes] = []
            for number_of_run in range(1, args.runs + 1):
                sample = measure(nodes, args.level, with_import=not args.no_import)
                samples[nodes].append(sample)
                for problem in sample.problems:
                    print(f"FAILED: {nodes} nodes, run {number_of_run}: {problem}", flush=True)
    print(f"\n{report(samples)}")
    if args.json is not None:
        content = {
            "machine": facts,
            "level": args.level,
            "busy": args.busy,
            "sizes": {nodes: [asdict(s) for s in found] for nodes, found in samples.items()},
        }
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if any(sample.problems for found in samples.values() for sample in found) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--nodes", type=counts, default=[1, 2, 8], metavar="N,...", help="default 1,2,8"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each size (default 5)")
    parser.add_argument("--level", choices=("light", "full"), default="light")
    parser.add_argument(
        "--busy",
        type=int,
        default=0,
        metavar="K",
        help="number of busy processes beside the checks (default 0)",
    )
    parser.add_argument(
        "--no-import",
        action="store_true",
        help="do not measure the import of torch",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    return parser.parse_args(argv)


@contextlib.contextmanager
def _busy(processes: int) -> Iterator[None]:
    running = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(nodes: int, level: str, *, with_import: bool = True) -> Sample:
    """Return the duration and verdicts of one check."""
    import_s: float | None = None
    imported: list[tuple[int, str]] = []
    if with_import:
        import_s, imported = _together([[sys.executable, "-c", "import torch"]] * nodes)
    command = [str(Launcher.FT_RUN.path), "check", "--check-level", level, "--json"]
    if nodes > 1:
        command += ["--nnodes", str(nodes), "--rdzv-id", "benchmark"]
        command += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    check_s, checked = _together([command] * nodes)
    problems = [f"importing torch ended with {status}" for status, _ in imported if status]
    problems += [f"a node exited with {status}" for status, _ in checked if status]
    # One node prints the report of all nodes.
    reports = [json.loads(output) for _, output in checked if output]
    if len(reports) != 1:
        return Sample(check_s, import_s, {}, (*problems, f"{len(reports)} reports"))
    verdicts = {entry["node"]: entry["verdict"] for entry in reports[0]["nodes"]}
    if len(verdicts) != nodes:
        problems.append(f"{len(verdicts)} of {nodes} nodes are in the report")
    problems += [
        f"{entry['node']} is {entry['verdict']}: {entry['reason']}"
        for entry in reports[0]["nodes"]
        if entry["verdict"] not in HARMLESS
    ]
    return Sample(check_s, import_s, verdicts, tuple(problems))


def _together(commands: Sequence[Sequence[str]]) -> tuple[float, list[tuple[int, str]]]:
    """Run commands at once; return the seconds to the last exit, and each status and stdout.

    Commands are killed after ``LIMIT_S``.
    """
    with contextlib.ExitStack() as files:
        started = time.monotonic()
        running = []
        for command in commands:
            output = files.enter_context(tempfile.TemporaryFile("w+"))
            running.append(
                (
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.DEVNULL,
                        env=environment(),
                    ),
                    output,
                )
            )
        for process, _ in running:
            ended(process, started + LIMIT_S)
        took_s = time.monotonic() - started
        results = []
        for process, output in running:
            output.seek(0)
            results.append((process.returncode, output.read()))
    return took_s, results


def report(samples: dict[int, list[Sample]]) -> str:
    """Return the table, one line per number of nodes."""
    lines = [["nodes", "checks", "check s", "import torch s", "extra s", "target", "met"]]
    lines[0] += ["passed", "slow", "rejected", "failed"]
    for nodes, found in samples.items():
        checked = summarize([sample.check_s for sample in found])
        compared = [(s.check_s, s.import_s) for s in found if s.import_s is not None]
        imported = summarize([import_s for _, import_s in compared])
        extra = summarize([check_s - import_s for check_s, import_s in compared])
        target = TARGETS_S.get(nodes) if extra else None
        verdicts = Counter(v for sample in found for v in sample.verdicts.values())
        lines.append(
            [
                str(nodes),
                str(len(found)),
                *(
                    number(values.median if values else None)
                    for values in (checked, imported, extra)
                ),
                f"<= {target:g}" if target else "",
                ("yes" if extra.median <= target else "NO") if extra and target else "",
                str(verdicts["passed"]),
                str(verdicts["slow"]),
                str(verdicts.total() - sum(verdicts[v] for v in HARMLESS)),
                str(sum(bool(sample.problems) for sample in found)),
            ]
        )
    return table(lines)


if __name__ == "__main__":
    sys.exit(main())
