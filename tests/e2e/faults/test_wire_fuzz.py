"""A running job whose master hears what no agent says, from strangers and from members.

100,000 messages: FT_RUN_FUZZ_MESSAGES=100000 pytest -s tests/e2e/faults/test_wire_fuzz.py
"""

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.tests.harness.hostile import Hostile
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

MESSAGES = int(os.environ.get("FT_RUN_FUZZ_MESSAGES", "1500"))
PER_STREAM = 10
CONNECTIONS = 16
STREAMS_PER_CONNECTION = 12
"""The master allows 16 at a time. A stream that fails while a message is written, with others not
read, stays open in grpc's client until its connection ends, whether it is cancelled or not."""

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
MEMORY_MAX_MB = 100 + MESSAGES // 500
"""Connections stay open in grpc's client (see above) until the master has closed those that were
idle for a minute; each takes some 22 kB of it."""
ATTEND = "/ft_run.rendezvous.v1.Rendezvous/Attend"
STATUS = "/ft_run.rendezvous.v1.Rendezvous/Status"

KINDS = (
    *("attend", "failed", "done", "stopped", "challengereply", "heard", "checkresult"),
    *("stackreport", "suspicion", "stepsreport", "notice", "drained"),
)
"""Of what a member says; not that it leaves, which it may."""

WORKER = """
import os, sys, time
print("up", os.getpid(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


class Attack:
    """What strangers and a member of the job say to its master."""

    def __init__(self, endpoint: str, job_id: str, nodes: tuple[str, ...]) -> None:
        self._endpoint = endpoint
        self._job_id = job_id
        self.said = 0
        self.answers = 0
        self._hostile = Hostile(
            7,
            protocol=(1,), job_id=(job_id,), min_nodes=(3,), max_nodes=(3,), node_unit=(1,),
            max_restarts=(2,), policy=(), checks=(), hang=(), separate_store=(False,),
            rescale_delay_s=(),
            node_id=(*nodes, "x/0", "y/0", "z/0"), incarnation=("1", "2", "3"),
            local_world_size=(1, 2), round=(0, 1, 999_999_999), nodes=(0, 3),
        )  # fmt: skip

    async def strangers(self, messages: int) -> None:
        """Say so many things on streams of their own, several connections at a time."""
        shares = [messages // CONNECTIONS] * CONNECTIONS
        await asyncio.gather(*map(self._stranger, shares))

    async def _stranger(self, messages: int) -> None:
        said = 0
        while said < messages:
            async with grpc.aio.insecure_channel(self._endpoint, options=OWN_CONNECTION) as channel:
                for _ in range(STREAMS_PER_CONNECTION):
                    if said == messages:
                        break
                    said += await self._stream(channel, min(PER_STREAM, messages - said))
        await asyncio.to_thread(self._other_bytes)

    async def _stream(self, channel: grpc.aio.Channel, messages: int) -> int:
        """Say at most so many things on a stream; return how many."""
        random, said = self._hostile.random, 0
        call: Any = channel.stream_stream(ATTEND)()
        try:
            for number in range(messages):
                if random.random() < 0.2:
                    data = self._hostile.garbage()
                else:
                    data = self._hostile.message(*(("attend",) if not number else ()))
                said += 1
                await call.write(data)
            if random.random() < 0.5:
                await call.done_writing()  # to which the master's answer is the end
                while await call.read() is not grpc.aio.EOF:
                    self.answers += 1
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the master has ended the stream
        finally:
            call.cancel()
        self.said += said
        return said

    def _other_bytes(self) -> None:
        """Say what is no HTTP/2, or a frame of 16 MB, or nothing."""
        host, _, port = self._endpoint.rpartition(":")
        huge = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" * 1000
        for data in (self._hostile.random.randbytes(5000), huge, b""):
            with socket.create_connection((host, int(port)), timeout=60) as stranger:
                try:
                    stranger.sendall(data)
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(65536):
                        pass
                except OSError:
                    pass  # the master has hung up


class Member:
    """A node of the job that says nonsense besides what it must, and is let back each time."""

    def __init__(self, endpoint: str, attend: pb.Attend, hostile: Hostile) -> None:
        self._endpoint = endpoint
        self._channel: grpc.aio.Channel | None = None
        self._attend = attend
        self._hostile = hostile
        self.said = 0

    async def join(self) -> Any:
        """Attend on a connection of its own, as an agent does; return the stream."""
        await self.close()
        self._channel = grpc.aio.insecure_channel(self._endpoint, options=OWN_CONNECTION)
        call: Any = self._channel.stream_stream(ATTEND)()
        await call.write(pb.NodeMessage(attend=self._attend).SerializeToString())
        return call

    async def close(self) -> None:
        """End the connection."""
        if self._channel is not None:
            await self._channel.close()

    async def started(self, call: Any) -> None:
        """Wait for the start of a round, and claim to be in it from then on."""
        while True:
            message = pb.MasterMessage.FromString(await call.read())
            if message.WhichOneof("body") == "start":
                break
        given = message.start.assignment
        self._attend.claim.CopyFrom(
            pb.Claim(
                round=given.round, formed_by=given.formed_by, nodes=given.nodes,
                node_rank=given.node_rank, rank_offset=given.rank_offset,
                successor=given.successor, state=pb.CLAIM_STATE_RUNNING,
            )
        )  # fmt: skip

    async def harass(self, call: Any, messages: int) -> Any:
        """Say so many things that no member says; return the last stream."""
        for _ in range(messages):
            data = self._hostile.garbage()
            if self._hostile.random.random() < 0.7:
                data = self._hostile.message(*KINDS)
            if _is_of_round_0(data):
                continue  # that is no attack: a member may say how its own workers are
            self.said += 1
            try:
                await call.write(data)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                call = await self.join()
        call.cancel()
        return await self.join()

    async def done(self, call: Any) -> str:
        """Succeed; return the sentence of the verdict."""
        await call.write(pb.NodeMessage(done=pb.Done(round=0)).SerializeToString())
        while True:
            message = pb.MasterMessage.FromString(await call.read())
            if message.WhichOneof("body") == "verdict":
                await call.write(pb.NodeMessage(heard=pb.Heard()).SerializeToString())
                await call.done_writing()
                return str(message.verdict.sentence)


def _is_of_round_0(data: bytes) -> bool:
    try:
        message = pb.NodeMessage.FromString(data)
    except DecodeError:
        return False
    body = message.WhichOneof("body")
    if body == "leave":
        return True
    return body in ("failed", "done", "stopped") and not getattr(message, body).round


def high_water_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024


def test_a_running_job_does_not_care_what_is_said_to_its_master(
    ft: "Launcher", free_port: int
) -> None:
    endpoint, gate, job_id = f"127.0.0.1:{free_port}", ft.folder / "gate", f"fuzz-{ft.mark}"
    conf = "node_grace=3600"
    master = ft.start("master", "--bind", endpoint, "--rdzv-conf", conf)
    master.expect("listening at")
    agents = [
        ft.start(
            "--nnodes", 3, "--rdzv-id", job_id, "--rdzv-endpoint", endpoint, "--max-restarts", 2,
            "--rdzv-conf", conf, ft.script(WORKER), gate,
        )
        for _ in range(2)
    ]  # fmt: skip
    asyncio.run(_attack(endpoint, job_id, master, agents, gate.touch))
    assert [agent.wait() for agent in agents] == [0, 0]
    assert master.wait() == 0
    for command in (master, *agents):
        assert "Traceback" not in command.stderr
        assert "bug of ft-run" not in command.stderr
    assert "round=1" not in master.stderr
    assert [agent.stdout.count("up ") for agent in agents] == [1, 1]
    assert "no connection" not in agents[0].stderr + agents[1].stderr


async def _attack(
    endpoint: str,
    job_id: str,
    master: "Command",
    agents: "list[Command]",
    open_gate: Callable[[], None],
) -> None:
    attend = pb.Attend(
        protocol=1,
        version="0",
        job=pb.JobSpec(job_id=job_id, min_nodes=3, max_nodes=3, node_unit=1, max_restarts=2),
        node=pb.NodeSpec(node_id="m/0", incarnation="m", host="m", local_world_size=1),
        offer=pb.Offer(address="127.0.0.1", port=1),
    )
    async with grpc.aio.insecure_channel(endpoint, options=OWN_CONNECTION) as channel:
        member = Member(endpoint, attend, Hostile(8, round=(1, 2, 2**32 - 1), node_id=("m/0",)))
        call = await member.join()
        await member.started(call)
        for agent in agents:
            await asyncio.to_thread(agent.expect, "^up ")
        before = high_water_mb(master.pid)
        names = tuple(node.node_id for node in (await _status(channel)).nodes)
        # The member's own name is not among those that strangers use: to a node that is away,
        # as this one is now and then, a process of that name is the same node, started again.
        attack = Attack(endpoint, job_id, tuple(name for name in names if name != "m/0"))
        _, call = await asyncio.gather(
            attack.strangers(MESSAGES * 3 // 4), member.harass(call, MESSAGES // 4)
        )
        asked = time.monotonic()
        reply = await _status(channel)
        answered_ms = (time.monotonic() - asked) * 1000
        after = high_water_mb(master.pid)
        print(
            f"\n{attack.said} messages of strangers, {member.said} of a member: the master took"
            f" {before} MB before and {after} MB at most; status after {answered_ms:.0f} ms:"
            f" {reply.phase}, round {reply.round}, {reply.restarts} restarts"
        )
        assert after < MEMORY_MAX_MB
        assert (reply.phase, reply.round, reply.restarts) == ("running", 0, 0)
        open_gate()
        assert "all workers succeeded" in await member.done(call)
        await member.close()


async def _status(channel: grpc.aio.Channel) -> Any:
    ask: Any = channel.unary_unary(STATUS)
    return pb.StatusReply.FromString(await ask(b""))


if MESSAGES > 10_000:
    pytestmark = pytest.mark.timeout(3600)
