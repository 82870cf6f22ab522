"""What comes to a closed wire without the right certificate: each gets nothing."""

import asyncio
import subprocess
from collections.abc import Callable

import grpc
import pytest
from ft_run.rendezvous.master.link import LinkDown
from ft_run.rendezvous.protocol.messages import (
    Waiting,
)
from ft_run.rendezvous.transport import channel_options, server
from ft_run.rendezvous.trust.certificates import key_pair
from ft_run.rendezvous.trust.credentials import TokenTrust
from ft_run.rendezvous.trust.key_pair import KeyPair
from ft_run.tests.harness.closed_wire import (
    OTHER,
    TOKEN,
    Node,
    Recorder,
    client_hello,
    door,
    issued,
    run,
    say,
    shown,
    status,
)

STRANGERS: dict[str, Callable[[], "grpc.ChannelCredentials | None"]] = {
    "plain gRPC": lambda: None,
    "TLS without a certificate": lambda: grpc.ssl_channel_credentials(key_pair(TOKEN).authority),
    "TLS with the roots of the system": grpc.ssl_channel_credentials,
    "a token of its own": lambda: shown(key_pair(OTHER)),
    "a foreign certificate": lambda: shown(key_pair(OTHER), key_pair(TOKEN).authority),
    "an expired certificate": lambda: shown(issued(1990, 2001)),
    "a certificate of the future": lambda: shown(issued(2500, 2600)),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_gets_no_answer(stranger: str) -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await status(there.endpoint, STRANGERS[stranger]())
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            print(f"\n{stranger}: {error.value.details()}")
            assert there.is_untouched
            reply = await status(there.endpoint, shown(key_pair(TOKEN)))
            assert reply.phase == "waiting for nodes"

    run(test)


def test_a_master_with_an_expired_certificate_is_not_trusted() -> None:
    class Expired(TokenTrust):
        @property
        def _key_pair(self) -> KeyPair:
            return issued(1990, 2001)

    async def test() -> None:
        async with door(Expired(TOKEN)) as there:
            node = Node(there.endpoint, TokenTrust(TOKEN))
            assert await node.events.get() == LinkDown("the token differs from that of the master")
            await node.link.close()

    run(test)


@pytest.mark.parametrize("options", [[], ["-alpn", "h2"], ["-tls1_2"], ["-tls1_1"]])
def test_openssl_reads_the_certificate_and_nothing_else(options: list[str]) -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            client = await asyncio.create_subprocess_exec(
                *("openssl", "s_client", "-connect", str(there.endpoint), "-quiet", *options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            said, told = await client.communicate(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 10)
            print("\n", said, told.decode())
            assert said == b""
            assert there.is_untouched

    run(test)


def test_what_a_member_has_said_opens_nothing_when_it_is_said_again() -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            relay = Recorder(there.endpoint)
            node = Node(await relay.start(), TokenTrust(TOKEN))
            await node.next(Waiting)
            await node.link.close()
            await relay.stop()
            assert len(b"".join(relay.said)) > 500
        async with door(TokenTrust(TOKEN)) as there:
            await asyncio.to_thread(say, there.endpoint, b"".join(relay.said))
            assert there.is_untouched

    run(test)


def test_a_slow_handshake_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_options, "_HANDSHAKE_S", 1)

    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            hello = client_hello()
            for beginning in (b"", hello[:1], hello[: len(hello) // 2], hello):
                await asyncio.to_thread(say, there.endpoint, beginning)  # returns: it hung up
            assert there.is_untouched

    run(test)


def test_strangers_take_no_more_connections_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The files that are left are for the workers of this host; what has attended stays."""
    monkeypatch.setattr(server, "_CONNECTIONS_MAX", 4)

    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            node = Node(there.endpoint, TokenTrust(TOKEN))
            await node.next(Waiting)
            host, port = there.endpoint.host, there.endpoint.port
            silent = [await asyncio.open_connection(host, port) for _ in range(3)]
            await asyncio.to_thread(say, there.endpoint, b"")  # returns: it hung up at once
            assert not any(reader.at_eof() for reader, _ in silent)
            for _, writer in silent:
                writer.close()
            reply = await status(there.endpoint, shown(key_pair(TOKEN)), waits=True)
            assert [node.attached for node in reply.nodes] == [True]
            await node.link.close()

    run(test)
