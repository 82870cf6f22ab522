"""The master with thousands of agents: the time to join and to re-form the world.

    python benchmarks/scale.py [--agents 32,1000,10000] [--repeats 7] [--stacks] [--json FILE]

It runs the real ``ft-run master`` in its own process, and simulates the agents in a second one
(``swarm.py``) over real gRPC streams. The baseline is a no-op gRPC server (``bare_master.py``), or
with ``--monitored`` a master without ``--events`` and ``--metrics``. See README.md.
"""

import argparse
import json
import os
import re
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from figures import counts, facts_line, machine_facts, number, table
from jobs import environment, free_port

TARGETS_S = {1_000: 0.3, 10_000: 3.0}
"""Target in seconds to re-form the world, by number of agents."""

STACKS_TARGET_S = 3.0
"""Target of ``ft-run stacks`` with 1,000 agents."""

_SPARE_FILES = 200
_SWARM_TIMEOUT_S = 900.0
_MASTER_START_S = 30.0
_MASTER_EXIT_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a run failed."""
    args = _arguments(argv)
    facts = machine_facts()
    print(facts_line(facts), flush=True)
    results = []
    failures = []
    for agents in args.agents:
        try:
            results.append(measure(agents, args))
        except (RuntimeError, subprocess.SubprocessError) as error:
            failures.append(f"FAILED: {agents} agents: {error}")
            continue
        median = number(reform_s(results[-1]))
        print(f"  {agents} agents: re-formed in {median} s (median)", flush=True)
        if (stacks := results[-1]["stacks"]) is not None:
            took = f"{number(stacks['seconds'])} s, {number(stacks['master_cpu_s'])} s of CPU"
            target = f"<= {STACKS_TARGET_S:g} s for 1000"
            print(f"  {agents} agents: ft-run stacks took {took} in the master ({target})")
    if results:
        print(f"\n{report(results, is_monitored=args.monitored)}")
    for sentence in failures:
        print(sentence)
    if args.json is not None:
        content = {"machine": facts, "has_token": args.token, "sizes": results}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if failures else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--agents",
        type=counts,
        default=[32, 1000, 10000],
        metavar="N,...",
        help="default 32,1000,10000",
    )
    parser.add_argument(
        "--repeats", type=int, default=7, help="number of re-formed worlds (default 7)"
    )
    parser.add_argument(
        "--idle-s",
        type=float,
        default=5.0,
        metavar="T",
        help="seconds to observe the idle master (default 5)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument("--stacks", action="store_true", help="also measure ft-run stacks, once")
    parser.add_argument(
        "--endpoints",
        type=int,
        choices=(1, 3),
        default=1,
        help="number of masters, of which one leads (default 1)",
    )
    parser.add_argument(
        "--segment-size",
        type=int,
        default=1,
        metavar="N",
        help="nodes of a segment, and --node-unit: a divisor of the agents (default 1: none)",
    )
    parser.add_argument(
        "--token", action="store_true", help="use a token: mutual TLS on all connections"
    )
    parser.add_argument(
        "--monitored",
        action="store_true",
        help="compare a master with --events and --metrics with one without them",
    )
    args = parser.parse_args(argv)
    args.environ = environment()
    if args.token:
        args.environ["FT_RUN_TOKEN"] = secrets.token_hex(32)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if max(args.agents) > hard - _SPARE_FILES:
        parser.error(
            f"{max(args.agents)} agents need as many open files per process, but the limit is "
            f"{hard}: raise it (ulimit -Hn)"
        )
    return args


def measure(agents: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements for one number of agents; see ``swarm.py``.

    Raises:
        RuntimeError: the master or the agents failed; the message has the end of their output.
        subprocess.TimeoutExpired: they took too long.
    """
    listed = ",".join(f"127.0.0.1:{free_port()}" for _ in range(args.endpoints))
    program = [str(Path(sys.executable).with_name("ft-run")), "master", "--bind", listed]
    short = {"idle_s": 0.0, "stacks": False}
    if args.monitored:
        baseline = _with_master(program, agents, argparse.Namespace(**{**vars(args), **short}))
        with tempfile.TemporaryDirectory(prefix="ft-run-bench-") as folder:
            program += ["--metrics", "0", "--events", f"{folder}/e.jsonl"]
            return _with_master(program, agents, args) | {"floor": baseline}
    result = _with_master(program, agents, args)
    bare = [sys.executable, str(Path(__file__).with_name("bare_master.py")), str(agents)]
    more = short | {"endpoints": 1}
    return result | {
        "floor": _with_master(bare, agents, argparse.Namespace(**{**vars(args), **more}))
    }


def _with_master(command: Sequence[str], agents: int, args: argparse.Namespace) -> dict[str, Any]:
    """Start masters with a command, and return the measurements of the agents."""
    with ExitStack() as files:
        logs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(args.endpoints)]
        masters = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=args.environ
            )
            for log in logs
        ]
        try:
            place, port = leading(logs, masters)
            result = _swarm(port, masters[place].pid, agents, args)
            for master in masters:
                assert master.stdin is not None
                master.stdin.close()
            statuses = [master.wait(_MASTER_EXIT_S) for master in masters]
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            said = "".join(map(_end_of, logs))
            raise RuntimeError(f"{error}; output of the master:\n{said}") from error
        finally:
            for master in masters:
                if master.poll() is None:
                    master.kill()
                    master.wait()
                assert master.stdin is not None
                master.stdin.close()
    if any(statuses):
        raise RuntimeError(f"exit codes of the masters: {statuses}")
    return result


def leading(logs: Sequence[IO[str]], masters: "list[subprocess.Popen[bytes]]") -> tuple[int, int]:
    """Return the index of the leading master, and its port."""
    deadline = time.monotonic() + _MASTER_START_S
    while time.monotonic() < deadline and all(master.poll() is None for master in masters):
        for place, said in enumerate(map(_end_of, logs)):
            found = re.search(r"listening at .*\(port (\d+)\)", said)
            if found is not None and (len(logs) == 1 or "this host leads" in said):
                return place, int(found[1])
        time.sleep(0.02)
    raise RuntimeError("no master listens and leads")


def _end_of(log: IO[str]) -> str:
    """Return the end of a file that another process writes."""
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), 4000, max(0, size - 4000)).decode(errors="replace")


def _swarm(port: int, master_pid: int, agents: int, args: argparse.Namespace) -> dict[str, Any]:
    given = {
        "port": port,
        "agents": agents,
        "repeats": args.repeats,
        "idle-s": args.idle_s,
        "stacks": int(args.stacks),
        "master-pid": master_pid,
        "segment-size": args.segment_size,
    }
    swarm = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("swarm.py")),
            *(word for name, value in given.items() for word in (f"--{name}", str(value))),
        ],
        env=args.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SWARM_TIMEOUT_S,
        check=False,
    )
    if swarm.returncode != 0:
        raise RuntimeError(f"the agents failed: {swarm.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(swarm.stdout)
    return result


def reform_s(result: dict[str, Any]) -> float:
    """Return the median time to re-form the world."""
    return _median(result, "seconds")


def _median(result: dict[str, Any], key: str) -> float:
    return float(statistics.median(cost[key] for cost in result["rounds"]))


def report(results: Sequence[dict[str, Any]], *, is_monitored: bool = False) -> str:
    """Return the table, one line per number of agents."""
    heading = [
        "agents",
        "join s",
        "re-form s",
        "min",
        "unmonitored s" if is_monitored else "no-op server s",
        "target",
        "met",
        "master CPU s",
    ]
    heading += ["client CPU s", "messages", "kB", "master MiB", "idle CPU %"]
    lines = [heading]
    for result in results:
        target = TARGETS_S.get(result["agents"])
        median = reform_s(result)
        messages = _median(result, "sent") + _median(result, "received")
        size = _median(result, "sent_bytes") + _median(result, "received_bytes")
        lines.append(
            [
                str(result["agents"]),
                number(result["join"]["seconds"]),
                number(median),
                number(min(cost["seconds"] for cost in result["rounds"])),
                number(reform_s(result["floor"])),
                f"<= {target:g}" if target else "",
                "" if target is None else ("yes" if median <= target else "NO"),
                number(_median(result, "master_cpu_s")),
                number(_median(result, "client_cpu_s")),
                f"{messages:.0f}",
                number(size / 1000),
                number(result["master_rss_mib"]),
                number(result["master_idle_percent"], 2),
            ]
        )
    return table(lines)


if __name__ == "__main__":
    sys.exit(main())
