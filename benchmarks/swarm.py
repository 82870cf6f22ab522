"""Simulates thousands of agents in one process, over real gRPC streams to a real master.

    swarm.py --port PORT --agents N --repeats R --idle-s T --stacks 0|1 --master-pid PID
             --segment-size N

``scale.py`` starts it; it writes one JSON object. An agent is a stream and prepared bytes: it
joins, confirms stops, and accepts its assignment. To ``ft-run stacks`` it reports that its workers
wait in a collective; one worker sleeps elsewhere. Messages are encoded before the measurement, so
that the client costs little.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Attend,
    Done,
    Failed,
    Heard,
    JobSpec,
    NodeSpec,
    Stopped,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.protocol.stacks import Frame, RankStack, RankState, StackReport
from ft_run.rendezvous.transport.channel_options import SERVICE, client_options
from ft_run.rendezvous.transport.codec import encode_node
from ft_run.rendezvous.trust.credentials import TokenTrust, Trust
from ft_run.rendezvous.trust.token import Token
from ft_run.rendezvous.trust.wire import open_channel
from procfs import cpu_s, memory

WORKERS = 8
"""Workers per simulated node."""

_TOKEN = "FT_RUN_TOKEN"

_ROUND_S = 120.0
"""Time-out of a round."""

_OPENING = 256
"""Agents that connect at the same time."""

_OPENING_CLOSED = 64
"""The same with a token: handshakes need CPU time, and simulated agents do not retry."""

_HEARD = encode_node(Heard())


@dataclass(slots=True)
class RoundCost:
    """Cost of one round, from its cause to the last start that was received."""

    seconds: float = 0.0
    master_cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    sent: int = 0
    """Messages from nodes to the master."""
    received: int = 0
    sent_bytes: int = 0
    """Of messages, without HTTP/2 and TCP."""
    received_bytes: int = 0


class SimulatedNode:
    """One simulated agent."""

    __slots__ = ("_call", "_index", "_job", "_swarm", "_writing", "stacks", "stopped")

    def __init__(self, index: int, job: JobSpec, swarm: "Swarm") -> None:
        self._index, self._job, self._swarm = index, job, swarm
        self._call: Any = None
        self._writing = asyncio.Lock()
        self.stopped = b""
        """The answer to a stop; prepared for each round."""
        self.stacks = b""
        """The answer to ``ft-run stacks``, once."""

    @property
    def _address(self) -> str:
        return f"10.{self._index >> 16}.{self._index >> 8 & 255}.{self._index & 255}"

    def attend(self) -> bytes:
        """Return its first message."""
        node = NodeSpec(
            node_id=f"node-{self._index}/0",
            incarnation=f"{self._index:016x}",
            host=f"node-{self._index}",
            address=self._address,
            role="default",
            local_world_size=WORKERS,
            wanted_rank=None,
            segment=f"rack-{self._index // unit}" if (unit := self._job.node_unit) > 1 else "",
        )
        offer = Offer(self._address, 40000)
        return encode_node(Attend(PROTOCOL_VERSION, "bench", self._job, node, offer, None))

    def failed(self, round_number: int) -> bytes:
        """Return the report of a failure."""
        failure = Failure(
            kind=FailureKind.WORKER,
            rank=0,
            local_rank=0,
            node_rank=0,
            host=f"node-{self._index}",
            pid=4711,
            exit_code=-9,
            time_s=1_700_000_000,
        )
        return encode_node(Failed(round_number, failure))

    def prepare(self, round_number: int) -> None:
        """Have the answer to the stop of a round at hand."""
        offer = Offer(self._address, 40000 + round_number % 10000)
        self.stopped = encode_node(Stopped(round_number, offer))

    def prepare_stacks(self) -> None:
        """Have the answer to the first question for stacks at hand."""
        frames = [Frame(f"torch/nn/part{n}.py", n, "forward", is_library=True) for n in range(12)]
        stacks = []
        for rank in range(self._index * WORKERS, (self._index + 1) * WORKERS):
            line = (41, "file.read()") if rank == 17 else (88, "dist.all_reduce(loss)")
            own = Frame("train.py", line[0], "main", source=line[1])
            host = f"node-{self._index}"
            there = RankStack(rank, self._index, host, RankState.ANSWERED, (*frames, own), 1204)
            stacks.append(there)
        self.stacks = encode_node(StackReport(1, tuple(stacks)))

    async def send(self, data: bytes) -> None:
        """Send prepared bytes."""
        self._swarm.cost.sent += 1
        self._swarm.cost.sent_bytes += len(data)
        # The answer to a message may come before its write returns, and gRPC takes one at a time.
        async with self._writing:
            await self._call.write(data)

    async def run(self, channel: grpc.aio.Channel, attend: bytes) -> None:
        """Attend until the verdict."""
        swarm, parse = self._swarm, pb.MasterMessage.FromString
        call: Any = channel.stream_stream(f"/{SERVICE}/Attend")()
        self._call = call
        await self.send(attend)
        while (data := await call.read()) is not grpc.aio.EOF:
            swarm.cost.received += 1
            swarm.cost.received_bytes += len(data)
            message = parse(data)
            body = message.WhichOneof("body")
            if body == "start":
                swarm.started(message.start.assignment)
                self.begin(message.start.assignment.round)
            elif body == "stop":
                await self.end()
                await self.send(self.stopped)
            elif body == "workgrant":
                self.granted(message.workgrant)
            elif body == "stackorder":
                await self.send(self.stacks)
            elif body == "verdict":
                await self.send(_HEARD)
                await call.done_writing()
            elif body == "refused":
                raise RuntimeError(message.refused.sentence)
            elif body == "waiting":
                swarm.admitted()

    def begin(self, round_number: int) -> None:
        """Start the workers of a round."""

    async def end(self) -> None:
        """Stop them."""

    def granted(self, grant: Any) -> None:
        """Take pieces of shared work."""


class Swarm:
    """All simulated agents of one job."""

    def __init__(
        self,
        port: int,
        agents: int,
        master_pid: int,
        kind: type[SimulatedNode] = SimulatedNode,
        unit: int = 1,
    ) -> None:
        job = JobSpec("scale", agents, agents, unit, 1_000_000)
        self.cost = RoundCost()
        self._port, self._master_pid = port, master_pid
        self._nodes = [kind(index, job, self) for index in range(agents)]
        self._round = -1
        self._ranks: set[int] = set()
        self._complete = asyncio.Event()
        self._opening = asyncio.Semaphore(_OPENING_CLOSED if _TOKEN in os.environ else _OPENING)
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self) -> RoundCost:
        """Connect all agents; return what it took until the first world was formed."""
        attends = [node.attend() for node in self._nodes]

        async def connect() -> None:
            for node, attend in zip(self._nodes, attends, strict=True):
                await self._opening.acquire()
                self._tasks.append(asyncio.create_task(node.run(_channel(self._port), attend)))

        return await self._timed(connect)

    async def reform(self) -> RoundCost:
        """Let one agent fail; return the cost until all have new assignments."""
        failing = self._nodes[self._round % len(self._nodes)]
        for node in self._nodes:
            node.prepare(self._round)
        report = failing.failed(self._round)
        return await self._timed(lambda: failing.send(report))

    async def ask_for_stacks(self) -> dict[str, float]:
        """Run ``ft-run stacks``; return its duration and the CPU time of the master."""
        for node in self._nodes:
            node.prepare_stacks()
        program = Path(sys.executable).with_name("ft-run")
        cpu_before, started = cpu_s(self._master_pid), time.perf_counter()
        command = await asyncio.create_subprocess_exec(
            program, "stacks", f"127.0.0.1:{self._port}", stdout=asyncio.subprocess.PIPE
        )
        said, _ = await command.communicate()
        seconds = time.perf_counter() - started
        master_cpu_s = cpu_s(self._master_pid) - cpu_before
        heads = [line for line in said.decode().splitlines() if line.startswith("rank")]
        last = len(self._nodes) * WORKERS - 1
        wanted = ["rank 17 on node 2 (node-2) · step 1204", f"ranks 0-16,18-{last} · step 1204"]
        if heads != wanted:
            raise RuntimeError(
                f"ft-run stacks printed {heads} after {seconds:.1f} s: expected {wanted}"
            )
        return {"seconds": seconds, "master_cpu_s": master_cpu_s}

    async def finish(self) -> None:
        """Let all agents succeed; wait until each has received the verdict."""
        done = encode_node(Done(self._round))
        for node in self._nodes:
            await node.send(done)
        await asyncio.wait_for(asyncio.gather(*self._tasks), _ROUND_S)

    def admitted(self) -> None:
        """Let the next agent connect: one was admitted."""
        self._opening.release()

    def started(self, assignment: Any) -> None:
        """Check and record the assignment of an agent."""
        size = len(self._nodes)
        if (assignment.round, assignment.nodes, assignment.world_size) != (
            self._round,
            size,
            size * WORKERS,
        ):
            raise RuntimeError(f"unexpected assignment in round {self._round}: {assignment}")
        self._ranks.add(assignment.node_rank)
        if len(self._ranks) == size:
            self._complete.set()

    async def _timed(self, cause: Callable[[], Awaitable[None]]) -> RoundCost:
        self._round += 1
        self._ranks.clear()
        self._complete.clear()
        self.cost = cost = RoundCost()
        cpu_before, own_before = cpu_s(self._master_pid), time.process_time()
        started = time.perf_counter()
        await cause()
        await self._watch()
        cost.seconds = time.perf_counter() - started
        cost.master_cpu_s = cpu_s(self._master_pid) - cpu_before
        cost.client_cpu_s = time.process_time() - own_before
        self.cost = RoundCost()  # later messages are not part of the round
        return cost

    async def _watch(self) -> None:
        """Wait for the last start; raise the error of a failed agent."""
        complete = asyncio.create_task(self._complete.wait())
        done, _ = await asyncio.wait(
            [complete, *self._tasks], timeout=_ROUND_S, return_when=asyncio.FIRST_COMPLETED
        )
        if complete not in done:
            complete.cancel()
            for task in done:
                task.result()
            raise RuntimeError(
                f"round {self._round}: {len(self._ranks)} of {len(self._nodes)} agents were "
                f"started, {len(done)} streams ended early"
            )


@lru_cache
def trust_of_environment() -> Trust | None:
    """Return the credentials of the token in the environment, one certificate for all agents."""
    return TokenTrust(Token(os.environ[_TOKEN])) if _TOKEN in os.environ else None


def _channel(port: int) -> grpc.aio.Channel:
    # The options of a real agent, with one connection per channel.
    return open_channel(Endpoint("127.0.0.1", port), client_options(5.0), trust_of_environment())


@asynccontextmanager
async def steady() -> AsyncIterator[None]:
    """Disable the client's garbage collection during the measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _run(args: argparse.Namespace) -> dict[str, object]:
    swarm = Swarm(args.port, args.agents, args.master_pid, unit=args.segment_size)
    async with steady():
        join = await swarm.join()
        rounds = [await swarm.reform() for _ in range(args.repeats)]
        cpu_before, idle_since = cpu_s(args.master_pid), time.perf_counter()
        await asyncio.sleep(args.idle_s)
        idle_s = time.perf_counter() - idle_since
        idle = 100 * (cpu_s(args.master_pid) - cpu_before) / idle_s if idle_s else 0.0
        size = memory(args.master_pid)
        stacks = await swarm.ask_for_stacks() if args.stacks else None
        await swarm.finish()
    return {
        "agents": args.agents,
        "join": asdict(join),
        "rounds": [asdict(cost) for cost in rounds],
        "master_idle_percent": idle,
        "stacks": stacks,
        "master_rss_mib": size.rss,
        "client_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def raise_open_files_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Run one swarm."""
    parser = argparse.ArgumentParser()
    for name in ("port", "agents", "repeats", "stacks", "master-pid", "segment-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--idle-s", type=float, required=True)
    args = parser.parse_args()
    raise_open_files_limit()
    json.dump(asyncio.run(_run(args)), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
