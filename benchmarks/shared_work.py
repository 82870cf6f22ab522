"""The master while thousands of agents share work: its CPU, and the time to re-form the world.

    python benchmarks/shared_work.py [--agents 1000] [--paces 0,0.1,10] [--seconds 20] [--json FILE]

It runs the real ``ft-run master``, and simulates agents over real gRPC streams (``swarm.py``). Each
has one loop that confirms pieces at a fixed rate, with the rules of the real agent. Pace 0 is the
baseline: no agent shares work. See README.md.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from figures import facts_line, machine_facts, number, table
from ft_run.rendezvous.protocol.messages import JobSpec
from ft_run.rendezvous.transport.codec import encode_node, from_part
from ft_run.rendezvous.work.messages import WorkClaim, WorkGrant, WorkReport
from ft_run.rendezvous.work.node_work import NodeWork, Taker
from jobs import environment
from procfs import cpu_s
from scale import leading
from swarm import SimulatedNode, Swarm, raise_open_files_limit, steady

_WORK = WorkClaim("benchmark", 1_000_000_000, 1)
_BETWEEN_ROUNDS_S = 3.0
_START_S = 0.3
"""From the start of a round to the first request of a worker."""


class WorkingNode(SimulatedNode):
    """A simulated agent whose worker confirms pieces at a pace."""

    __slots__ = ("_pieces", "_round", "_tasks", "_timer", "_work", "pace")

    def __init__(self, index: int, job: JobSpec, swarm: Swarm) -> None:
        super().__init__(index, job, swarm)
        self.pace = 0.0
        self._pieces = 0
        self._round = -1
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._work = NodeWork(self._report, self._answer)

    @property
    def pieces(self) -> int:
        """The number of confirmed pieces."""
        return self._pieces

    def begin(self, round_number: int) -> None:
        """Start the workers of a round."""
        self._round = round_number
        self._work.begin(round_number, time.monotonic())
        if self.pace:
            loop = asyncio.get_running_loop()
            begins_s = _START_S + random.random() / self.pace
            loop.call_later(begins_s, self._ask, round_number, False)

    async def end(self) -> None:
        """Stop them, and report what they have confirmed."""
        self._round = -1
        self._work.end(time.monotonic())
        self._tick_later()
        while self._tasks:
            await asyncio.gather(*self._tasks)

    def granted(self, grant: Any) -> None:
        """Take pieces."""
        self._work.granted(from_part(WorkGrant, grant), time.monotonic())
        self._tick_later()

    def _report(self, report: WorkReport) -> None:
        task = asyncio.get_running_loop().create_task(self.send(encode_node(report)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answer(self, _taker: Taker, piece: int | str) -> None:
        if not isinstance(piece, int) or piece < 0:
            raise RuntimeError(f"no piece: {piece}")
        asyncio.get_running_loop().call_later(1 / self.pace, self._ask, self._round, True)

    def _ask(self, round_number: int, confirms: bool) -> None:
        if round_number == self._round:
            self._pieces += confirms
            self._work.ask(Taker(0, round_number), _WORK, time.monotonic())
            self._tick_later()

    def _tick_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at, loop = self._work.due_at(), asyncio.get_running_loop()
        self._timer = None if at == math.inf else loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._work.tick(time.monotonic())
        self._tick_later()


class WorkingSwarm(Swarm):
    """Agents that share work."""

    def set_pace(self, pace: float) -> None:
        """Set the pieces that each agent confirms per second from the next round on."""
        for node in self._nodes:
            assert isinstance(node, WorkingNode)
            node.pace = pace

    async def finish_work(self) -> None:
        """Let all loops end."""
        for node in self._nodes:
            await node.end()

    @property
    def pieces(self) -> int:
        """The number of confirmed pieces."""
        return sum(node.pieces for node in self._nodes if isinstance(node, WorkingNode))


async def _measure(port: int, master_pid: int, args: argparse.Namespace) -> list[dict[str, float]]:
    swarm = WorkingSwarm(port, args.agents, master_pid, WorkingNode)
    results = []
    async with steady():
        await swarm.join()
        for pace in args.paces:
            swarm.set_pace(pace)
            await swarm.reform()
            await asyncio.sleep(min(10.0, 1 / pace) if pace else 1.0)  # first pieces
            swarm.cost.sent = swarm.cost.received = swarm.cost.sent_bytes = 0
            pieces, cpu_before, since = swarm.pieces, cpu_s(master_pid), time.perf_counter()
            await asyncio.sleep(args.seconds)
            seconds = time.perf_counter() - since
            result = {
                "pace": pace,
                "pieces_per_s": (swarm.pieces - pieces) / seconds,
                "master_cpu_percent": 100 * (cpu_s(master_pid) - cpu_before) / seconds,
                "reports_per_s": swarm.cost.sent / seconds,
                "grants_per_s": swarm.cost.received / seconds,
                "kb_per_s": swarm.cost.sent_bytes / seconds / 1000,
            }
            rounds = []
            for _ in range(args.repeats):
                rounds.append(await swarm.reform())
                await asyncio.sleep(_BETWEEN_ROUNDS_S)
            result["reform_s"] = statistics.median(cost.seconds for cost in rounds)
            result["reform_min_s"] = min(cost.seconds for cost in rounds)
            result["master_cpu_s"] = statistics.median(cost.master_cpu_s for cost in rounds)
            result["client_cpu_s"] = statistics.median(cost.client_cpu_s for cost in rounds)
            results.append(result)
            print(f"  {result}", flush=True)
        await swarm.finish_work()
        await swarm.finish()
    return results


def _report(results: Sequence[dict[str, float]]) -> str:
    names = list(results[0])
    return table([names, *([number(result[name]) for name in names] for result in results)])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    paces = partial(str.split, sep=",")
    parser.add_argument("--agents", type=int, default=1000, help="default 1000")
    parser.add_argument(
        "--paces", type=paces, default=["0", "0.1", "10"], help="per agent (default 0,0.1,10)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each pace (default 20)")
    parser.add_argument("--repeats", type=int, default=5, help="re-formed worlds (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    args = parser.parse_args(argv)
    args.paces = list(map(float, args.paces))
    facts = machine_facts()
    print(facts_line(facts), flush=True)
    raise_open_files_limit()
    program = str(Path(sys.executable).with_name("ft-run"))
    with tempfile.TemporaryFile("w+") as log:
        master = subprocess.Popen(
            [program, "master", "--bind", "127.0.0.1:0"],
            stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment(),
        )  # fmt: skip
        try:
            _, port = leading([log], [master])
            results = asyncio.run(_measure(port, master.pid, args))
        finally:
            master.kill()
            master.wait()
            assert master.stdin is not None
            master.stdin.close()
    print(f"\n{_report(results)}")
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": facts, "paces": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
