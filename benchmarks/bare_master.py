"""The no-op gRPC server of ``scale.py``: sends the messages of a round without any logic.

    bare_master.py AGENTS

Towards ``swarm.py`` it behaves like the master: it answers nodes that attend, stops all nodes when
one fails, and starts all when all have stopped. It only looks at the kind of a message. Its time
for a round is that of gRPC, protobuf and asyncio on this machine.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Iterator

import grpc
import grpc.aio
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.transport.channel_options import SERVICE, server_options
from ft_run.rendezvous.trust.wire import listen
from swarm import WORKERS, raise_open_files_limit, trust_of_environment

_REASON = "rank 0 on node 0 (node-0) was killed by SIGKILL"


class BareMaster:
    """Streams and counters."""

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._outboxes: list[asyncio.Queue[bytes]] = []
        self._round = 0
        self._waiting = pb.MasterMessage(waiting=pb.Waiting()).SerializeToString()
        self._verdict = pb.MasterMessage(
            verdict=pb.Verdict(outcome=pb.OUTCOME_SUCCEEDED)
        ).SerializeToString()
        self._ready = 0

    async def attend(
        self, requests: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        """Serve one stream."""
        outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._outboxes.append(outbox)
        await context.send_initial_metadata((("ft-run-master", "bare"),))
        reader = asyncio.create_task(self._read(requests, outbox))
        try:
            while data := await outbox.get():
                await context.write(data)
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[bytes], outbox: "asyncio.Queue[bytes]") -> None:
        async for data in requests:
            match pb.NodeMessage.FromString(data).WhichOneof("body"):
                case "attend":
                    outbox.put_nowait(self._waiting)
                    self._one_is_ready()
                case "stopped":
                    self._one_is_ready()
                case "failed":
                    stop = pb.Stop(round=self._round - 1, reason=_REASON)
                    message = pb.MasterMessage(stop=stop).SerializeToString()
                    for each in self._outboxes:
                        each.put_nowait(message)
                case "done":
                    outbox.put_nowait(self._verdict)
        outbox.put_nowait(b"")

    def _one_is_ready(self) -> None:
        self._ready += 1
        if self._ready < self._agents:
            return
        self._ready = 0
        for outbox, assignment in zip(self._outboxes, self._places(), strict=True):
            outbox.put_nowait(assignment)
        self._round += 1

    def _places(self) -> Iterator[bytes]:
        return (
            pb.MasterMessage(
                start=pb.Start(
                    assignment=pb.Assignment(
                        round=self._round,
                        restarts=self._round,
                        node_rank=rank,
                        nodes=self._agents,
                        rank_offset=rank * WORKERS,
                        world_size=self._agents * WORKERS,
                        role_rank_offset=rank * WORKERS,
                        role_world_size=self._agents * WORKERS,
                        master_addr="10.0.0.0",
                        master_port=40000,
                        reason=_REASON,
                    )
                )
            ).SerializeToString()
            for rank in range(self._agents)
        )


async def _serve(agents: int) -> None:
    master = BareMaster(agents)
    server = grpc.aio.server(options=server_options(5.0))
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Attend": grpc.stream_stream_rpc_method_handler(master.attend)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = listen(server, Endpoint("127.0.0.1", 0), trust_of_environment())
    await server.start()
    print(f"listening at 127.0.0.1 (port {port})", flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until scale.py is done with it
    await server.stop(None)


def main() -> int:
    """Serve until the end of standard input."""
    raise_open_files_limit()
    gc.set_threshold(50_000, 20, 100)  # as the master's
    asyncio.run(_serve(int(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
