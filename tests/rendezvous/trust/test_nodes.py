"""A node at a master with a token: what it is told, and that it says nothing in plain text."""

import asyncio
import ssl
from pathlib import Path

import pytest
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.master.link import LinkDown, LinkLost, LinkUp
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import (
    Refused,
    Waiting,
)
from ft_run.rendezvous.transport.server import MasterServer
from ft_run.rendezvous.trust.certificates import key_pair
from ft_run.rendezvous.trust.credentials import TokenTrust, Trust
from ft_run.rendezvous.trust.handshake_errors import HandshakeError
from ft_run.rendezvous.trust.key_pair import WIRE_NAME
from ft_run.rendezvous.trust.source import TrustOptions, read_trust
from ft_run.rendezvous.trust.token import write_token
from ft_run.tests.harness.closed_wire import (
    OTHER,
    TOKEN,
    Node,
    Recorder,
    door,
    run,
)


def test_a_node_with_the_token_attends() -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            node = Node(there.endpoint, TokenTrust(TOKEN))
            assert await node.events.get() == LinkUp(again=False)
            assert isinstance(await node.events.get(), Waiting)
            assert [n.spec.node_id for n in there.master.group.roster] == ["h/0"]
            await node.link.close()

    run(test)


def test_the_master_is_known_by_the_alternative_name_in_its_certificate() -> None:
    """The common name alone is no longer looked at by most that speak TLS."""
    mine = key_pair(TOKEN)
    context = ssl.create_default_context(cadata=mine.authority.decode())
    context.hostname_checks_common_name = False

    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            host, port = there.endpoint.host, there.endpoint.port
            _, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=WIRE_NAME
            )
            writer.transport.abort()

    run(test)


def test_a_master_that_falls_silent_is_missed_behind_a_closed_wire_too() -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN), silence_s=3600.0) as there:
            relay = Recorder(there.endpoint)
            node = Node(await relay.start(), TokenTrust(TOKEN), silence_s=1.0)
            await node.next(Waiting)
            relay.falls_silent = True
            assert (await node.next(LinkDown)).reason in ("no keepalive response", "no answer")
            await node.link.close()
            await relay.stop()

    run(test)


@pytest.mark.parametrize(
    ("masters", "nodes", "doubt"),
    [
        (TokenTrust(TOKEN), None, HandshakeError.WANTS_TOKEN),
        (TokenTrust(TOKEN), TokenTrust(OTHER), HandshakeError.OTHER_TOKEN),
        (None, TokenTrust(TOKEN), HandshakeError.PLAIN),
    ],
)
def test_a_node_is_told_what_is_wrong_with_its_token_and_nothing_else(
    masters: Trust | None, nodes: Trust | None, doubt: HandshakeError
) -> None:
    async def test() -> None:
        async with door(masters) as there:
            node = Node(there.endpoint, nodes)
            assert await node.events.get() == LinkDown(doubt.words)  # at once, and it tries again
            await node.link.close()
            node = Node(there.endpoint, nodes, timeout_s=0.0)
            assert await node.events.get() == Refused(doubt.sentence(there.endpoint))
            await node.link.close()
            assert there.is_untouched

    run(test)


@pytest.mark.parametrize(
    ("nodes", "doubt"),
    [
        (None, HandshakeError.WANTS_TOKEN),
        (TokenTrust(OTHER), HandshakeError.OTHER_TOKEN),
    ],
)
def test_what_a_node_was_told_is_its_reason_although_the_master_no_longer_answers(
    nodes: Trust | None, doubt: HandshakeError
) -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            relay = Recorder(there.endpoint)
            endpoint = await relay.start()
            node = Node(endpoint, nodes, timeout_s=1.0)
            assert await node.events.get() == LinkDown(doubt.words)
            relay.falls_silent = True
            assert await node.next(Refused) == Refused(doubt.sentence(endpoint))
            await node.link.close()
            await relay.stop()

    run(test)


def test_a_master_that_ends_takes_its_reason_with_it() -> None:
    """It may have been the one of the previous job: the whole time to connect is left."""

    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            node = Node(there.endpoint, None, timeout_s=60.0)
            assert await node.events.get() == LinkDown(HandshakeError.WANTS_TOKEN.words)
            assert node.left_s[-1] <= 10.0
        while await node.next(LinkDown) != LinkDown("connection refused"):
            pass
        assert node.left_s[-1] > 10.0
        await node.link.close()

    run(test)


def test_a_node_that_was_there_is_not_refused_later() -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            node = Node(there.endpoint, TokenTrust(TOKEN), master_timeout_s=1.0)
            await node.next(Waiting)
        master = Master(GroupSettings(), lambda _: None)
        server = MasterServer(master, "1", 5.0, TokenTrust(OTHER))
        await server.start(there.endpoint)
        event = await node.events.get()
        while not isinstance(event, Refused | LinkLost):
            event = await node.events.get()
        assert isinstance(event, LinkLost)
        await node.link.close()
        await server.stop()

    run(test)


def test_a_node_that_was_there_before_the_master_had_another_token_tries_again() -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            port = there.endpoint.port
            node = Node(there.endpoint, TokenTrust(TOKEN), timeout_s=0.0)
            await node.next(Waiting)
        server = MasterServer(Master(GroupSettings(), lambda _: None), "1", 5.0, TokenTrust(OTHER))
        await server.start(Endpoint("127.0.0.1", port))
        while await node.next(LinkDown) != LinkDown("the token differs from that of the master"):
            pass
        await server.stop()
        async with door(None):
            server = MasterServer(
                Master(GroupSettings(), lambda _: None), "1", 5.0, TokenTrust(TOKEN)
            )
            await server.start(Endpoint("127.0.0.1", port))
            assert await node.next(LinkUp) == LinkUp(again=True)
            await node.link.close()
            await server.stop()

    run(test)


def test_a_master_that_has_gone_away_wants_nothing() -> None:
    """A plain connection that is closed is no sign of a token."""

    async def test() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        node = Node(endpoint, None)
        down = await node.events.get()
        assert isinstance(down, LinkDown)
        assert down.reason in ("connection closed", "connection reset")
        await node.link.close()
        server.close()
        await server.wait_closed()

    run(test)


def test_a_node_with_a_token_says_nothing_in_plain_text() -> None:
    """Whatever it meets, all that it sends is TLS: there is no downgrade."""

    async def test() -> None:
        said: list[bytes] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                said.append(await reader.read(4096))
                writer.write(b"\0\0\0\4\0\0\0\0\0")  # the SETTINGS of HTTP/2: what plain gRPC says
                said.append(await reader.read(4096))
            finally:  # the end of the test may come first
                writer.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        node = Node(endpoint, TokenTrust(TOKEN))
        for _ in range(3):
            assert await node.next(LinkDown) == LinkDown(HandshakeError.PLAIN.words)
        await node.link.close()
        server.close()
        await server.wait_closed()
        handshakes_and_alerts = {0x16, 0x15}
        assert {data[0] for data in said if data} <= handshakes_and_alerts
        assert not any(b"PRI * HTTP/2.0" in data for data in said)

    run(test)


def test_another_token_in_the_file_is_that_of_the_next_job(tmp_path: Path) -> None:
    """What runs keeps its own, also for new connections; what is started now has the new one."""

    def trust_of_file() -> Trust | None:
        return read_trust(TrustOptions(token_file=str(tmp_path / "token")))

    async def test() -> None:
        write_token(str(tmp_path / "token"), TOKEN)
        masters, nodes = trust_of_file(), trust_of_file()
        (tmp_path / "token").unlink()
        write_token(str(tmp_path / "token"), OTHER)
        async with door(masters) as there:
            node = Node(there.endpoint, nodes)
            await node.next(Waiting)
            late = Node(there.endpoint, trust_of_file())
            assert await late.events.get() == LinkDown(HandshakeError.OTHER_TOKEN.words)
            await late.link.close()
            await node.link.close()

    run(test)
