"""Tests of the link across the network, with a real master at its other end."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.lease import fencing
from ft_run.rendezvous.master.link import LinkDown, LinkEvent, LinkLost, LinkUp
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Attend,
    Challenge,
    Done,
    Heard,
    JobSpec,
    NodeSpec,
    Refused,
    Start,
    Verdict,
    Waiting,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.transport import client
from ft_run.rendezvous.transport.channel_options import LED_BY_KEY, MASTER_KEY, SERVICE, TERM_KEY
from ft_run.rendezvous.transport.client import GrpcLink
from ft_run.rendezvous.transport.codec import encode_master
from ft_run.rendezvous.transport.grpc_errors import in_words, is_foreign
from ft_run.rendezvous.transport.server import MasterServer
from ft_run.rendezvous.trust import wire
from ft_run.rendezvous.trust.credentials import TokenTrust, Trust
from ft_run.rendezvous.trust.token import new_token
from ft_run.rendezvous.work.messages import WorkClaim, WorkReport
from ft_run.tests.harness import ports
from ft_run.tests.harness.link_events import plain
from msgspec.structs import replace

TIMEOUT_S = 60.0
SETTINGS = GroupSettings(node_grace_s=3600.0, verdict_grace_s=3600.0)


def attend(nodes: int = 1) -> Attend:
    return Attend(
        protocol=PROTOCOL_VERSION,
        version="1",
        job=JobSpec("j", nodes, nodes, 1, 0),
        node=NodeSpec("h/0", "i0", "h", "127.0.0.1", "r", 1, None),
        offer=Offer("127.0.0.1", 1000),
        claim=None,
    )


class Node:
    """An agent's end of a link."""

    def __init__(self, endpoint: Endpoint, first: Callable[[], Attend], **options: Any) -> None:
        self.events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        times = {"silence_s": 5.0, "connect_timeout_s": 60.0, "master_timeout_s": 60.0}
        self.opened_s: list[float] = []
        """When the stream of each ``LinkUp`` was opened."""
        self.link = GrpcLink(endpoint, first, self._note, **{**times, **options})

    def _note(self, event: LinkEvent) -> None:
        if isinstance(event, LinkUp):
            self.opened_s.append(event.opened_s)
        self.events.put_nowait(plain(event))

    async def next(self, kind: type) -> Any:
        """Return the next event of a kind; others are passed over."""
        while True:
            event = await self.events.get()
            if isinstance(event, kind):
                return event


async def serve(port: int = 0, trust: Trust | None = None) -> tuple[Master, MasterServer, Endpoint]:
    master = Master(SETTINGS, lambda _: None)
    server = MasterServer(master, "1", 5.0, trust)
    port = await server.start(Endpoint("127.0.0.1", port))
    return master, server, Endpoint("127.0.0.1", port)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


@pytest.fixture
def nowhere(free_port: int) -> Endpoint:
    return Endpoint("127.0.0.1", free_port)


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


def test_a_job_from_the_first_word_to_the_last() -> None:
    async def test() -> None:
        master, server, endpoint = await serve()
        node = Node(endpoint, attend)
        assert await node.events.get() == LinkUp(again=False)
        assert (await node.next(Start)).assignment.world_size == 1
        node.link.send(Done(0))
        verdict = await node.next(Verdict)
        node.link.send(Heard())
        await node.link.close()  # delivers what was sent
        assert await master.finished() == verdict
        await server.stop()

    run(test)


def test_claims_follow_the_first_message_before_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        reports = [WorkReport(0, n, WorkClaim(f"w{n}", 9, 1), 0.0, 0) for n in (1, 2)]
        master, server, endpoint = await serve()
        received: list[Any] = []
        monkeypatch.setattr(master, "receive", lambda _, message: received.append(message))

        def claims() -> list[WorkReport]:
            node.link.send(Done(0))  # while the connection is being opened
            return reports

        node = Node(endpoint, attend, claims=claims)
        await node.next(LinkUp)
        await node.link.close()
        assert received == [replace(attend(), claims=2), *reports, Done(0)]
        await server.stop()

    run(test)


def test_a_master_that_comes_later_is_found(free_port: int) -> None:
    async def test() -> None:
        node = Node(Endpoint("127.0.0.1", free_port), attend)
        assert await node.next(LinkDown) == LinkDown("connection refused")
        _, server, _ = await serve(free_port)
        assert await node.next(LinkUp) == LinkUp(again=False)
        await node.next(Start)
        await node.link.close()
        await server.stop()

    run(test)


def test_the_link_mends_itself_and_attends_as_of_then(free_port: int) -> None:
    async def test() -> None:
        first = attend(nodes=2)
        _, server, endpoint = await serve(free_port)
        began_s = fencing.now()
        node = Node(endpoint, lambda: first)
        await node.next(LinkUp)
        await node.next(Waiting)
        await server.stop()
        await node.next(LinkDown)
        node.link.send(Done(7))  # no master is there: Attend will tell all
        first = replace(first, offer=Offer("127.0.0.1", 2000))
        master, server, _ = await serve(free_port)
        assert await node.next(LinkUp) == LinkUp(again=True)
        first_s, second_s = node.opened_s
        assert began_s < first_s < second_s < fencing.now()
        await node.next(Waiting)
        assert [n.offer.port for n in master.group.roster] == [2000]
        await node.link.close()
        await server.stop()

    run(test)


def test_no_master_at_the_endpoint(nowhere: Endpoint) -> None:
    async def test() -> None:
        node = Node(nowhere, attend, connect_timeout_s=0.0)
        lost = await node.next(LinkLost)
        assert lost.sentence.startswith(f"no master at {nowhere} within 0 s (connection refused)")
        await node.link.close()
        node = Node(nowhere, attend, connect_timeout_s=0.0, port_is_taken=True)
        lost = await node.next(LinkLost)
        assert lost.sentence.startswith(f"port {nowhere.port} of this host is in use by a process")
        await node.link.close()

    run(test)


def test_a_master_that_stays_away() -> None:
    async def test() -> None:
        _, server, endpoint = await serve()
        node = Node(endpoint, attend, master_timeout_s=0.0, connect_timeout_s=3600.0)
        await node.next(Start)
        await server.stop()
        lost = await node.next(LinkLost)
        assert lost.sentence.startswith(f"no connection to the master at {endpoint} for 0 s")
        await node.link.close()

    run(test)


async def foreign_server(port: int = 0) -> tuple[grpc.aio.Server, Endpoint]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, Endpoint("127.0.0.1", port)


async def attended(
    attend: Callable[[Any, Any], Any], port: int = 0
) -> tuple[grpc.aio.Server, Endpoint]:
    """Serve what answers nodes in a master's place."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers: dict[str, Any] = {"Attend": grpc.stream_stream_rpc_method_handler(attend)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, Endpoint("127.0.0.1", port)


@pytest.mark.parametrize("code", [grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE])
def test_a_master_that_ends_a_stream_just_after_accepting_it(code: grpc.StatusCode) -> None:
    """As a master does that is stopped at that moment: the node tries again, and can close."""

    async def end_at_once(_: Any, context: Any) -> None:
        await context.send_initial_metadata(((MASTER_KEY, "1"),))
        if code is not grpc.StatusCode.OK:
            await context.abort(code, "stopping")

    async def test() -> None:
        server, endpoint = await attended(end_at_once)
        told = set()
        for _ in range(5):
            nodes = [Node(endpoint, attend, connect_timeout_s=9.0) for _ in range(30)]
            for node in nodes:
                event = await node.events.get()
                told.add(await node.events.get() if isinstance(event, LinkUp) else event)
            await asyncio.gather(*(node.link.close() for node in nodes))
        await server.stop(None)
        ended = "the master closed the connection" if code is grpc.StatusCode.OK else "stopping"
        # What breaks in the middle of the first word is closed, without gRPC saying why.
        assert LinkDown(ended) in told
        assert told <= {LinkDown(ended), LinkDown("connection closed")}

    run(test)


def test_connections_that_bring_nothing_do_not_count_as_a_master() -> None:
    """A node whose first word is never taken gives up in time, however often it connects."""

    async def hear_and_end(requests: Any, context: Any) -> None:
        await context.send_initial_metadata(((MASTER_KEY, "1"),))
        await anext(aiter(requests))

    async def test() -> None:
        server, endpoint = await attended(hear_and_end)
        node = Node(endpoint, attend, master_timeout_s=0.5)
        lost = await node.next(LinkLost)
        assert lost.sentence.startswith(f"no connection to the master at {endpoint} for 0.5 s")
        await node.link.close()
        await server.stop(None)

    run(test)


def test_a_leader_among_several_is_found_when_it_has_heard_of_the_node() -> None:
    """A leader that has not heard of it starts workers without waiting for this node's."""
    words = iter([(), (encode_master(Challenge()),)])

    async def greet(requests: Any, context: Any) -> None:
        await context.send_initial_metadata(((MASTER_KEY, "1"), (TERM_KEY, "5")))
        await anext(aiter(requests))
        for word in next(words):
            await context.write(word)

    async def test() -> None:
        server, endpoint = await attended(greet)
        node = Node(endpoint, attend, listed=[endpoint])
        ended = LinkDown("the master closed the connection")
        events = [await node.events.get() for _ in range(4)]
        assert events == [ended, LinkUp(again=False), Challenge(), ended]
        await node.link.close()
        await server.stop(None)

    run(test)


@pytest.mark.parametrize("is_listed", [False, True])
def test_no_channel_is_opened_to_where_nothing_listens(
    monkeypatch: pytest.MonkeyPatch, free_port: int, is_listed: bool
) -> None:
    """A channel costs ten times the CPU time of a probe."""
    opened: list[Endpoint] = []

    def open_channel(endpoint: Endpoint, *rest: Any) -> grpc.aio.Channel:
        opened.append(endpoint)
        return wire.open_channel(endpoint, *rest)

    monkeypatch.setattr(client, "open_channel", open_channel)
    monkeypatch.setattr(client, "_backoff_s", lambda _: 0.0)

    async def greet(requests: Any, context: Any) -> None:
        await context.send_initial_metadata(((MASTER_KEY, "1"), (TERM_KEY, "5")))
        await anext(aiter(requests))
        await context.write(encode_master(Challenge()))

    async def test() -> None:
        endpoint = Endpoint("localhost", free_port)
        node = Node(endpoint, attend, listed=[endpoint] if is_listed else ())
        for _ in range(5):
            assert await node.next(LinkDown) == LinkDown("connection refused")
        assert opened == [endpoint]
        server, _ = await attended(greet, free_port)
        await node.next(LinkUp)
        await node.link.close()
        await server.stop(None)

    run(test)


async def _greets_and_ends(requests: Any, context: Any) -> None:
    await context.send_initial_metadata(((MASTER_KEY, "1"), (TERM_KEY, "5")))


async def _names_no_leader(requests: Any, context: Any) -> None:
    greeting = ((MASTER_KEY, "1"), (TERM_KEY, "5"), (LED_BY_KEY, "-1"))
    await context.send_initial_metadata(greeting)
    async for _ in requests:
        pass


async def _makes_no_sense(requests: Any, context: Any) -> None:
    await context.send_initial_metadata(((MASTER_KEY, "1"), (TERM_KEY, "5")))
    await anext(aiter(requests))
    await context.write(b"\xff")
    async for _ in requests:
        pass


async def _does_not_greet(requests: Any, context: Any) -> None:
    await asyncio.sleep(TIMEOUT_S)


def ends_of_channels() -> int:
    """Return how many channels and calls of clients are alive, also those that were closed."""
    return sum(type(one).__name__ in ("AioChannel", "_AioCall") for one in gc.get_objects())


@pytest.mark.parametrize(
    ("answer", "is_listed"),
    [
        (None, False),
        (None, True),
        (_does_not_greet, False),
        (_does_not_greet, True),
        (_greets_and_ends, False),
        (_greets_and_ends, True),
        (_names_no_leader, True),
        (_makes_no_sense, False),
        (_makes_no_sense, True),
        (TokenTrust(new_token()), False),
        (TokenTrust(new_token()), True),
    ],
)
def test_an_attempt_leaves_no_channel_to_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
    nowhere: Endpoint,
    answer: Callable[[Any, Any], Any] | Trust | None,
    is_listed: bool,
) -> None:
    """One that is left goes on connecting: a node without a master would use a whole processor."""
    left: list[int] = []

    def between_attempts(_: int) -> float:
        left.append(ends_of_channels())
        return 0.0

    async def goes_just_after(_: Endpoint) -> None:
        """Whatever a probe finds, nothing may listen there by the time of the channel."""

    monkeypatch.setattr(client, "_backoff_s", between_attempts)
    monkeypatch.setattr(client, "why_unreachable", goes_just_after)
    monkeypatch.setattr(client, "_FIRST_ANSWER_S", 0.1)
    monkeypatch.setattr(client, "_LISTED_ANSWER_S", 0.1)

    async def test() -> None:
        endpoint = nowhere
        async with AsyncExitStack() as servers:
            if isinstance(answer, Trust):
                _, master_server, endpoint = await serve(trust=answer)
                servers.push_async_callback(master_server.stop)
            elif answer is not None:
                server, endpoint = await attended(answer)
                servers.push_async_callback(server.stop, None)
            node = Node(endpoint, attend, listed=[endpoint] if is_listed else ())
            while len(left) < 5:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.01)
            await node.link.close()

    gc.collect()
    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()
    assert left[-1] <= left[0] + 2  # of one attempt that is just over
    if isinstance(answer, Trust):  # what it was told is kept, the attempt is not
        assert left == [1] * len(left)  # the channel that never connects


def test_a_node_goes_at_once_to_the_host_that_is_said_to_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pause there would be that of a search that has lasted for a whole election."""
    pauses: list[int] = []

    def pause(attempts: int) -> float:
        pauses.append(attempts)
        return 0.0

    monkeypatch.setattr(client, "_backoff_s", pause)
    asked: list[int] = []

    def host(place: int) -> Callable[[Any, Any], Coroutine[Any, Any, None]]:
        async def greet(requests: Any, context: Any) -> None:
            asked.append(place)
            named = {0: 1, 1: 2, 2: 1}[place] if len(asked) < 4 else -1
            where = () if named < 0 else ((LED_BY_KEY, str(named)),)
            await context.send_initial_metadata(((MASTER_KEY, "1"), (TERM_KEY, "5"), *where))
            await anext(aiter(requests))
            await context.write(encode_master(Challenge()))

        return greet

    async def test() -> None:
        servers = [await attended(host(place)) for place in range(3)]
        endpoints = [endpoint for _, endpoint in servers]
        node = Node(endpoints[0], attend, listed=endpoints)
        await node.next(LinkUp)
        assert asked == [0, 1, 2, 1]
        assert pauses == [1]  # what sends it on and on does not have it hammer the hosts
        await node.link.close()
        for server, _ in servers:
            await server.stop(None)

    run(test)


def test_another_server_is_no_master() -> None:
    async def test() -> None:
        server, endpoint = await foreign_server()
        node = Node(endpoint, attend)
        event = await node.events.get()
        assert isinstance(event, LinkLost)
        assert f"the server at {endpoint} is not an ft-run master" in event.sentence
        await node.link.close()
        await server.stop(None)

    run(test)


def test_another_server_in_place_of_a_master_is_no_reason_to_give_up(free_port: int) -> None:
    # A proxy in front of the master answers in its own way while the master is away.
    async def test() -> None:
        _, server, endpoint = await serve(free_port)
        node = Node(endpoint, attend)
        await node.next(Start)
        await server.stop()
        await node.next(LinkDown)
        other, _ = await foreign_server(free_port)
        while await node.next(LinkDown) != LinkDown("not an ft-run master"):
            pass
        await other.stop(None)
        _, server, _ = await serve(free_port)
        assert await node.next(LinkUp) == LinkUp(again=True)
        await node.link.close()
        await server.stop()

    run(test)


def test_a_refusal_is_final() -> None:
    async def test() -> None:
        _, server, endpoint = await serve()
        first = Node(endpoint, lambda: attend(nodes=2))
        await first.next(Waiting)
        other = replace(attend(nodes=3), node=NodeSpec("h/1", "i", "h", "", "", 1, None))
        node = Node(endpoint, lambda: other)
        refused = await node.next(Refused)
        assert "--nnodes is 3 (this job: 2)" in refused.sentence
        await asyncio.wait([node.link._task])  # it ends by itself and says no more
        assert node.events.empty()
        await node.link.close()
        await first.link.close()
        await server.stop()

    run(test)


def test_an_error_of_ours_is_not_a_silent_wait() -> None:
    async def test() -> None:
        def broken() -> Attend:
            raise ZeroDivisionError

        _, server, endpoint = await serve()
        node = Node(endpoint, broken)
        lost = await node.next(LinkLost)
        assert "which is a bug of ft-run: ZeroDivisionError()" in lost.sentence
        await node.link.close()
        await server.stop()

    run(test)


def test_an_error_of_ours_does_not_keep_what_is_said_from_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(_: GrpcLink, __: Any, outbox: "asyncio.Queue[bytes | None]") -> None:
        await outbox.get()
        raise ZeroDivisionError

    monkeypatch.setattr(GrpcLink, "_write", broken)

    async def test() -> None:
        _, server, endpoint = await serve()
        node = Node(endpoint, lambda: attend(nodes=2))
        await node.next(Waiting)
        node.link.send(Done(0))
        lost = await node.next(LinkLost)
        assert "which is a bug of ft-run: ZeroDivisionError()" in lost.sentence
        await node.link.close()
        await server.stop()

    run(test)


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
CONNECT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:1: "


@pytest.mark.parametrize(
    ("code", "details", "foreign", "words"),
    [
        # As said by grpcio 1.62 and 1.85.
        (UNAVAILABLE, CONNECT + "Failed to connect to remote host: Connection refused", False,
         "connection refused"),
        (UNAVAILABLE, "DNS resolution failed for x:1: C-ares status is not ARES_SUCCESS", False,
         "the name does not resolve"),
        (UNAVAILABLE, "errors resolving x:1: [field:hostname lookup error:address lookup failed]",
         False, "the name does not resolve"),
        (UNAVAILABLE, CONNECT + "connection attempt timed out before receiving SETTINGS frame",
         False, "it accepts connections but does not answer"),
        (UNAVAILABLE, CONNECT + "tcp handshaker shutdown", False, "no answer"),  # a cut link
        (UNAVAILABLE, "Received http2 header with status: 502", False,
         "Received http2 header with status: 502"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", False, "no answer"),
        (UNAVAILABLE, CONNECT + "Trying to connect an http1.x server", True, None),
        (UNAVAILABLE, CONNECT + "Failed parsing HTTP/2 (Expected SETTINGS frame as the first "
         "frame, got frame type 79)", True, None),
        (grpc.StatusCode.UNIMPLEMENTED, "Received http2 header with status: 404", True, None),
        (grpc.StatusCode.PERMISSION_DENIED, "Received http2 header with status: 403", True, None),
        (UNAVAILABLE, "", False, "unavailable"),
    ],
)  # fmt: skip
def test_what_grpc_says_in_words(
    code: grpc.StatusCode, details: str, foreign: bool, words: str | None
) -> None:
    error = rpc_error(code, details)
    assert is_foreign(error) is foreign
    if words is not None:
        assert in_words(error) == words
