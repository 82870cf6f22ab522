"""Tests of the master's door: streams that say nothing, too much, or what makes no sense."""

import asyncio
import gc
import resource
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest
from ft_run.errors import PortInUseError
from ft_run.events.master import MasterEvent, NodeRefused
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Attend,
    Done,
    JobSpec,
    NodeSpec,
    Refused,
    Waiting,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.transport import server
from ft_run.rendezvous.transport.channel_options import (
    MAX_FROM_NODE_BYTES,
    SERVICE,
    STREAMS_PER_CONNECTION,
)
from ft_run.rendezvous.transport.codec import decode_master, encode_node
from ft_run.rendezvous.transport.server import MasterServer
from ft_run.rendezvous.transport.silent_streams import SilentStreams
from msgspec.structs import replace

TIMEOUT_S = 60.0


def attend(number: int = 0, job: str = "j") -> Attend:
    return Attend(
        protocol=PROTOCOL_VERSION,
        version="1",
        job=JobSpec(job, 2, 2, 1, 0),
        node=NodeSpec(f"h/{number}", f"i{number}", "h", "127.0.0.1", "r", 1, None),
        offer=Offer("127.0.0.1", 1000),
        claim=None,
    )


class Scene:
    """A master with a server, what it told, and streams of strangers to it."""

    def __init__(self, silent: SilentStreams | None = None) -> None:
        self.notes: list[MasterEvent] = []
        self.master = Master(GroupSettings(), self.notes.append)
        self.server = MasterServer(self.master, "1", 5.0)
        if silent is not None:
            self.server._silent = silent

    @property
    def refusals(self) -> list[NodeRefused]:
        """The nodes that were refused, and why."""
        return [note for note in self.notes if isinstance(note, NodeRefused)]

    async def __aenter__(self) -> "Scene":
        port = await self.server.start(Endpoint("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{port}"
        self.channel = self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop()

    def connect(self) -> grpc.aio.Channel:
        own = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.insecure_channel(self.endpoint, options=own)

    def stream(self) -> Any:
        return self.channel.stream_stream(f"/{SERVICE}/Attend")()

    async def say(self, *messages: bytes) -> Any:
        """Open a stream, say these, and return it."""
        stream = self.stream()
        for message in messages:
            await stream.write(message)
        return stream


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


async def ended(stream: Any) -> bool:
    """Wait for the end of a stream on which nothing is said."""
    return await stream.read() is grpc.aio.EOF and await stream.code() is grpc.StatusCode.OK


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - it is gRPC that makes it true
        await asyncio.sleep(0)


def test_a_port_that_is_taken_changes_nothing_in_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node tries it again and again, and does not serve thousands of streams."""
    made: list[object] = []
    monkeypatch.setattr(grpc.aio, "server", lambda **options: made.append(options))
    monkeypatch.setattr(gc, "set_threshold", lambda *thresholds: made.append(thresholds))

    async def test() -> None:
        holder = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = holder.sockets[0].getsockname()[1]
        refused = MasterServer(Master(GroupSettings(), lambda _: None), "1", 5.0)
        with pytest.raises(PortInUseError):
            await refused.start(Endpoint("127.0.0.1", port))
        await refused.stop()
        holder.close()
        assert not made

    run(test)


def test_a_stream_that_says_nothing_ends_in_time() -> None:
    async def test() -> None:
        async with Scene(SilentStreams(limit_s=0.1)) as scene:
            speaker = await scene.say(encode_node(attend()))
            assert isinstance(decode_master(await speaker.read()), Waiting)
            assert await ended(scene.stream())
            half_closed = scene.stream()
            await half_closed.done_writing()
            assert await ended(half_closed)
            assert not speaker.done()  # it has attended, and may say nothing for days

    run(test)


def test_call_in_progress_prints_nothing_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        scene = await Scene().__aenter__()
        status: Any = scene.channel.unary_unary(f"/{SERVICE}/Status")
        status(pb.StatusRequest(until_end=True).SerializeToString())
        await until(lambda: len(scene.server._calls) == 1)
        await scene.server.stop()

    asyncio.run(test())  # no turn of the event loop follows
    assert capfd.readouterr().err == ""


def test_the_oldest_of_too_many_silent_streams_ends() -> None:
    async def test() -> None:
        async with Scene(SilentStreams(limit_s=3600.0, most=3)) as scene:
            streams = []
            for _ in range(5):
                streams.append(scene.stream())
                await streams[-1].initial_metadata()
            assert await ended(streams[0])
            assert await ended(streams[1])
            await streams[4].write(encode_node(attend()))
            assert isinstance(decode_master(await streams[4].read()), Waiting)
            assert not any(stream.done() for stream in streams[2:])

    run(test)


def test_one_connection_has_so_many_streams_and_no_more() -> None:
    async def test() -> None:
        async with Scene(SilentStreams(limit_s=3600.0)) as scene:
            streams = [scene.stream() for _ in range(1000)]
            await until(lambda: len(scene.server._silent) >= STREAMS_PER_CONNECTION)
            other = scene.connect()
            status: Any = other.unary_unary(f"/{SERVICE}/Status")
            assert pb.StatusReply.FromString(await status(b"")).phase
            assert len(scene.server._silent) == STREAMS_PER_CONNECTION
            await other.close()
            for stream in streams:
                stream.cancel()

    run(test)


@pytest.mark.parametrize(
    ("method", "code", "words"),
    [
        (f"/{SERVICE}/Status", grpc.StatusCode.INVALID_ARGUMENT, "invalid request"),
        (f"/{SERVICE}/Stacks", grpc.StatusCode.INVALID_ARGUMENT, "invalid request"),
        ("/grpc.health.v1.Health/Check", grpc.StatusCode.NOT_FOUND, ""),
    ],
)
def test_a_question_that_is_no_protobuf_is_answered(
    method: str, code: grpc.StatusCode, words: str
) -> None:
    """Where a deserializer raises, gRPC writes a traceback once the client has gone away."""

    async def test() -> None:
        async with Scene() as scene:
            ask: Any = scene.channel.unary_unary(method)
            call = ask(b"\xff\xff")
            assert await call.code() is code
            assert await call.details() == words

    run(test)


def test_what_messages_that_never_end_take_of_the_memory_is_bounded() -> None:
    """Of one connection."""
    assert STREAMS_PER_CONNECTION * MAX_FROM_NODE_BYTES <= 12 * 2**20

    async def test() -> None:
        async with Scene() as scene:
            stream = await scene.say(bytes(MAX_FROM_NODE_BYTES + 1))
            assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert scene.refusals == []

    run(test)


@pytest.mark.parametrize(
    ("files", "connections"),
    [(1000, 750), (16_000, 12_000), (1_000_000, 12_000), (resource.RLIM_INFINITY, 12_000)],
)
def test_a_quarter_of_the_files_is_left_for_workers(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert server._connections()[1] == connections


def test_what_is_out_of_bounds_is_refused_in_one_sentence() -> None:
    async def test() -> None:
        async with Scene() as scene:
            odd = replace(attend(), offer=Offer("127.0.0.1", 2**32 - 1))
            for _ in range(2):
                stream = await scene.say(encode_node(odd))
                assert decode_master(await stream.read()) == Refused(
                    "invalid message: port is 4294967295, which ft-run never sends; "
                    "expected 0 to 65535."
                )
                assert await ended(stream)
            (refusal,) = scene.refusals  # once per reason
            assert refusal.peer.startswith("a node at ipv4:127.0.0.1:")
            assert refusal.sentence.startswith("invalid message: port is")
            assert scene.master.group.job is None

    run(test)


def test_a_message_out_of_bounds_ends_its_stream() -> None:
    async def test() -> None:
        async with Scene() as scene:
            stream = await scene.say(encode_node(attend()), encode_node(Done(2**32 - 1)))
            assert isinstance(decode_master(await stream.read()), Waiting)
            assert await ended(stream)

    run(test)


def test_a_stream_that_attends_again_is_over() -> None:
    """Else one stream could speak for as many nodes as it likes."""

    async def test() -> None:
        async with Scene() as scene:
            stream = await scene.say(encode_node(attend()), encode_node(attend(1)))
            assert isinstance(decode_master(await stream.read()), Waiting)
            assert await ended(stream)
            assert scene.master.group.roster.get("h/1") is None

    run(test)


def test_it_is_told_which_node_was_refused_and_why_once_per_reason() -> None:
    async def test() -> None:
        async with Scene() as scene:
            first = await scene.say(encode_node(attend()))
            await first.read()
            for number in (1, 1, 2):
                stream = await scene.say(encode_node(attend(number, "other")))
                assert isinstance(decode_master(await stream.read()), Refused)
            said = (
                "--rdzv-id 'other' is not the job of this master ('j'); use the same id or "
                "another endpoint."
            )
            assert scene.refusals == [NodeRefused("node h/1", said)]

    run(test)


def test_a_console_is_not_filled_with_made_up_reasons() -> None:
    async def test() -> None:
        async with Scene() as scene:
            for number in range(100):
                reason = f"reason {number}"
                scene.master.refused(NodeRefused("a node", reason))
            assert len(scene.refusals) == 32

    run(test)


@pytest.mark.parametrize("said", [b"\xff\xff", b"", encode_node(Done(0))])
def test_what_is_no_agent_leaves_nothing_behind(said: bytes) -> None:
    async def test() -> None:
        async with Scene() as scene:
            assert await ended(await scene.say(said))
            cancelled = scene.stream()
            await cancelled.initial_metadata()
            cancelled.cancel()
            first = await scene.say(encode_node(attend()))
            await first.read()
            first.cancel()
            roster, silent = scene.master.group.roster, scene.server._silent
            await until(lambda: roster.detached == 1 and not len(silent))
            assert not scene.master._streams

    run(test)


def test_a_node_that_does_not_read_is_let_go() -> None:
    async def test() -> None:
        async with Scene() as scene:
            stream = await scene.say(encode_node(attend()))
            await stream.read()
            (deliver,) = scene.master._streams.values()
            for _ in range(1000):
                deliver(Waiting(1, 2, 2, ("x" * 100_000,), 0.0, False))
            assert scene.master._streams
            deliver(Waiting(1, 2, 2, (), 0.0, False))
            await until(lambda: not scene.master._streams)

    run(test)


def test_a_stream_that_says_nonsense_and_does_not_read_is_over_too() -> None:
    async def test() -> None:
        async with Scene() as scene:
            stream = await scene.say(encode_node(attend()))
            await stream.read()
            (deliver,) = scene.master._streams.values()
            for _ in range(100):  # far more than what gRPC takes from a writer unread
                deliver(Waiting(1, 2, 2, ("x" * 1_000_000,), 0.0, False))
            await stream.write(b"\xff\xff")
            await until(lambda: not scene.master._streams)

    run(test)


def test_a_stream_that_has_ended_and_is_not_read_is_over_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_LAST_WORDS_S", 0.1)

    async def test() -> None:
        async with Scene() as scene:
            stream = await scene.say(encode_node(attend()))
            await stream.read()
            (deliver,) = scene.master._streams.values()
            for _ in range(100):  # far more than what gRPC takes from a writer unread
                deliver(Waiting(1, 2, 2, ("x" * 1_000_000,), 0.0, False))
            await stream.done_writing()
            await until(lambda: not scene.master._streams)

    run(test)
