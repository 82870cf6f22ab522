"""Checks of several nodes on this machine, over and over: their cost, and what they condemn.

    python benchmarks/checks.py [--nodes 1,2,8] [--runs N] [--busy K] [--json FILE]

All nodes are healthy, so every one that is condemned is a mistake. See README.md.
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

from figures import facts_line, machine_facts, number, summarize, table
from jobs import Launcher, environment, free_port

LIMIT_S = 120.0
HARMLESS = ("passed", "slow")
"""Verdicts with which a node stays; ``slow`` is a remark."""
TARGETS_S = {2: 3.0, 8: 6.0}
"""What a light check may cost beyond the import of torch, by the number of nodes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One check and, just before it, as many processes that only import torch."""

    check_s: float
    """From the first command to the exit of the last node."""
    import_s: float | None
    """As many processes as nodes, at once, that import torch and end; None if not measured."""
    verdicts: dict[str, str] = field(default_factory=dict)
    """By node."""
    problems: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 when a node was condemned or a check went wrong."""
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
        "--nodes", type=_counts, default=[1, 2, 8], metavar="N,...", help="default 1,2,8"
    )
    parser.add_argument("--runs", type=int, default=5, help="of each size (default 5)")
    parser.add_argument("--level", choices=("light", "full"), default="light")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="K", help="processes that keep a core busy meanwhile"
    )
    parser.add_argument(
        "--no-import",
        action="store_true",
        help="do not measure the import, only which nodes are condemned",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    return parser.parse_args(argv)


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return counts


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
    """Return what one check of so many nodes took and said."""
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
    # One of the nodes prints the report of all.
    reports = [json.loads(said) for _, said in checked if said]
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

    What takes longer than the limit is killed; its status says so.
    """
    with contextlib.ExitStack() as files:
        started = time.monotonic()
        running = []
        for command in commands:
            said = files.enter_context(tempfile.TemporaryFile("w+"))
            running.append(
                (
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=subprocess.DEVNULL,
                        env=environment(),
                    ),
                    said,
                )
            )
        for process, _ in running:
            _end(process, started + LIMIT_S)
        took_s = time.monotonic() - started
        ended = []
        for process, said in running:
            said.seek(0)
            ended.append((process.returncode, said.read()))
    return took_s, ended


def _end(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def report(samples: dict[int, list[Sample]]) -> str:
    """Return the table, one line per number of nodes."""
    lines = [["nodes", "checks", "check s", "import torch s", "beyond s", "target", "met"]]
    lines[0] += ["passed", "slow", "condemned", "went wrong"]
    for nodes, found in samples.items():
        checked = summarize([sample.check_s for sample in found])
        compared = [(s.check_s, s.import_s) for s in found if s.import_s is not None]
        imported = summarize([import_s for _, import_s in compared])
        beyond = summarize([check_s - import_s for check_s, import_s in compared])
        target = TARGETS_S.get(nodes) if beyond else None
        verdicts = Counter(v for sample in found for v in sample.verdicts.values())
        lines.append(
            [
                str(nodes),
                str(len(found)),
                *(
                    number(values.median if values else None)
                    for values in (checked, imported, beyond)
                ),
                f"<= {target:g}" if target else "",
                ("yes" if beyond.median <= target else "NO") if beyond and target else "",
                str(verdicts["passed"]),
                str(verdicts["slow"]),
                str(verdicts.total() - sum(verdicts[v] for v in HARMLESS)),
                str(sum(bool(sample.problems) for sample in found)),
            ]
        )
    return table(lines)


if __name__ == "__main__":
    sys.exit(main())
