"""Tests of the closed wire: a real master with a token, its nodes, and what else comes to it."""

import asyncio
import datetime
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from ft_run.errors import UsageError
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Attend,
    JobSpec,
    NodeSpec,
    Refused,
    Waiting,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.transport import channel_options
from ft_run.rendezvous.transport.channel_options import SERVICE
from ft_run.rendezvous.transport.client import GrpcLink
from ft_run.rendezvous.transport.link import LinkDown, LinkEvent, LinkUp
from ft_run.rendezvous.transport.master import Master
from ft_run.rendezvous.transport.server import MasterServer
from ft_run.rendezvous.trust.certificates import (
    WIRE_NAME,
    Papers,
    authority_key,
    certificate_of,
    issue,
    papers,
)
from ft_run.rendezvous.trust.credentials import FileTrust, TokenTrust
from ft_run.rendezvous.trust.doubt import Doubt
from ft_run.rendezvous.trust.token import new_token
from ft_run.rendezvous.trust.wire import Trust, open_channel

TIMEOUT_S = 60.0
TOKEN, OTHER = new_token(), new_token()
OWN = (("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", WIRE_NAME))


def attend() -> Attend:
    return Attend(
        protocol=PROTOCOL_VERSION,
        version="1",
        job=JobSpec("j", 2, 2, 1, 0),
        node=NodeSpec("h/0", "i0", "h", "127.0.0.1", "r", 1, None),
        offer=Offer("127.0.0.1", 1000),
        claim=None,
    )


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


class Door:
    """A master's server, and what has come through it."""

    def __init__(self, master: Master, server: MasterServer, endpoint: Endpoint) -> None:
        self.master = master
        self.server = server
        self.endpoint = endpoint

    @property
    def is_untouched(self) -> bool:
        """Whether no node has attended, and no stream waits to."""
        return not [*self.master.group.roster] and not len(self.server._silent)


@asynccontextmanager
async def door(trust: Trust | None) -> AsyncIterator[Door]:
    master = Master(GroupSettings(node_grace_s=3600.0), lambda _: None)
    server = MasterServer(master, "1", 5.0, trust)
    port = await server.start(Endpoint("127.0.0.1", 0))
    try:
        yield Door(master, server, Endpoint("127.0.0.1", port))
    finally:
        await server.stop()


class Node:
    """An agent's end of a link."""

    def __init__(self, endpoint: Endpoint, trust: Trust | None, timeout_s: float = 60.0) -> None:
        self.events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        self.link = GrpcLink(
            endpoint,
            attend,
            self.events.put_nowait,
            silence_s=5.0,
            connect_timeout_s=timeout_s,
            master_timeout_s=60.0,
            trust=trust,
        )

    async def next(self, kind: type) -> Any:
        while True:
            event = await self.events.get()
            if isinstance(event, kind):
                return event


def issued(begin: int, end: int) -> Papers:
    """Return papers of the job's own authority, valid in those years."""
    authority = authority_key(TOKEN)
    years = (datetime.datetime(year, 1, 1) for year in (begin, end))
    return issue(authority, certificate_of(authority), *years)


async def status(target: Endpoint, credentials: "grpc.ChannelCredentials | None") -> Any:
    """Ask a master as a plain gRPC client does."""
    channel = (
        grpc.aio.insecure_channel(str(target), options=OWN[:1])
        if credentials is None
        else grpc.aio.secure_channel(str(target), credentials, options=OWN)
    )
    async with channel:
        ask: Any = channel.unary_unary(f"/{SERVICE}/Status")
        return pb.StatusReply.FromString(await ask(b"", timeout=TIMEOUT_S))


def shown(mine: Papers, authority: bytes | None = None) -> "grpc.ChannelCredentials":
    return grpc.ssl_channel_credentials(authority or mine.authority, mine.key, mine.certificate)


# --- nodes -----------------------------------------------------------------------------------


def test_a_node_with_the_token_attends() -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            node = Node(there.endpoint, TokenTrust(TOKEN))
            assert await node.events.get() == LinkUp(again=False)
            assert isinstance(await node.events.get(), Waiting)
            assert [n.spec.node_id for n in there.master.group.roster] == ["h/0"]
            await node.link.close()

    run(test)


@pytest.mark.parametrize(
    ("masters", "nodes", "doubt"),
    [
        (TokenTrust(TOKEN), None, Doubt.WANTS_TOKEN),
        (TokenTrust(TOKEN), TokenTrust(OTHER), Doubt.OTHER_TOKEN),
        (None, TokenTrust(TOKEN), Doubt.PLAIN),
    ],
)
def test_a_node_is_told_what_is_wrong_with_its_token_and_nothing_else(
    masters: Trust | None, nodes: Trust | None, doubt: Doubt
) -> None:
    async def test() -> None:
        async with door(masters) as there:
            node = Node(there.endpoint, nodes)
            assert await node.events.get() == LinkDown(doubt.value)  # at once, and it tries again
            await node.link.close()
            node = Node(there.endpoint, nodes, timeout_s=0.0)
            assert await node.events.get() == Refused(doubt.sentence(there.endpoint))
            await node.link.close()
            assert there.is_untouched

    run(test)


def test_a_node_that_was_there_before_the_master_had_another_token_tries_again() -> None:
    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            port = there.endpoint.port
            node = Node(there.endpoint, TokenTrust(TOKEN), timeout_s=0.0)
            await node.next(Waiting)
        server = MasterServer(Master(GroupSettings(), lambda _: None), "1", 5.0, TokenTrust(OTHER))
        await server.start(Endpoint("127.0.0.1", port))
        while await node.next(LinkDown) != LinkDown("the token differs"):
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
            said.append(await reader.read(4096))
            writer.write(b"\0\0\0\4\0\0\0\0\0")  # the SETTINGS of HTTP/2: what plain gRPC says
            said.append(await reader.read(4096))
            writer.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        node = Node(endpoint, TokenTrust(TOKEN))
        for _ in range(3):
            assert await node.next(LinkDown) == LinkDown(Doubt.PLAIN.value)
        await node.link.close()
        server.close()
        await server.wait_closed()
        handshakes_and_alerts = {0x16, 0x15}
        assert {data[0] for data in said if data} <= handshakes_and_alerts
        assert not any(b"PRI * HTTP/2.0" in data for data in said)

    run(test)


# --- strangers -------------------------------------------------------------------------------

STRANGERS: dict[str, Callable[[], "grpc.ChannelCredentials | None"]] = {
    "plain gRPC": lambda: None,
    "TLS without a certificate": lambda: grpc.ssl_channel_credentials(papers(TOKEN).authority),
    "TLS with the roots of the system": grpc.ssl_channel_credentials,
    "a token of its own": lambda: shown(papers(OTHER)),
    "a foreign certificate": lambda: shown(papers(OTHER), papers(TOKEN).authority),
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
            reply = await status(there.endpoint, shown(papers(TOKEN)))
            assert reply.phase == "waiting for nodes"

    run(test)


def test_a_master_with_an_expired_certificate_is_not_trusted() -> None:
    class Expired(TokenTrust):
        @property
        def _papers(self) -> Papers:
            return issued(1990, 2001)

    async def test() -> None:
        async with door(Expired(TOKEN)) as there:
            node = Node(there.endpoint, TokenTrust(TOKEN))
            assert await node.events.get() == LinkDown("the token differs")
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


class Recorder:
    """Passes bytes on to a master, and keeps those of the node."""

    def __init__(self, target: Endpoint) -> None:
        self._target = target
        self.said: list[bytes] = []

    async def start(self) -> Endpoint:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection(self._target.host, self._target.port)
        await asyncio.gather(self._copy(reader, to, self.said), self._copy(there, writer, []))

    @staticmethod
    async def _copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: list[bytes]
    ) -> None:
        while data := await reader.read(65536):
            kept.append(data)
            writer.write(data)
        writer.close()


def say(endpoint: Endpoint, data: bytes) -> bytes:
    """Say bytes, and return what is answered until the other side hangs up."""
    heard = b""
    with socket.create_connection((endpoint.host, endpoint.port), timeout=TIMEOUT_S) as stranger:
        try:
            stranger.sendall(data)
            while more := stranger.recv(65536):
                heard += more
        except ConnectionError:
            pass
    return heard


def test_a_slow_handshake_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_options, "_HANDSHAKE_S", 1)

    async def test() -> None:
        async with door(TokenTrust(TOKEN)) as there:
            hello = client_hello()
            for beginning in (b"", hello[:1], hello[: len(hello) // 2], hello):
                await asyncio.to_thread(say, there.endpoint, beginning)  # returns: it hung up
            assert there.is_untouched

    run(test)


def client_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=WIRE_NAME).do_handshake()
    return outgoing.read()


# --- certificates of the user's own ----------------------------------------------------------


class Folder:
    """Three files, as cert-manager leaves them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, mine: Papers) -> None:
        for name, data in (
            ("ca", mine.authority),
            ("cert", mine.certificate),
            ("key", mine.key),
        ):
            (self.path / name).write_bytes(data)
            (self.path / name).chmod(0o600)

    def trust(self) -> FileTrust:
        trust = FileTrust(*(str(self.path / name) for name in ("cert", "key", "ca")))
        trust.wire_name = WIRE_NAME  # the papers of a token do for this
        return trust


@pytest.fixture
def files(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.write(papers(TOKEN))
    return folder


def test_certificates_of_ones_own_and_changed_ones_count_for_the_next_connection(
    files: Folder,
) -> None:
    async def test() -> None:
        async with door(files.trust()) as there:
            reply = await status(there.endpoint, shown(papers(TOKEN)))
            assert reply.phase == "waiting for nodes"
            node = Node(there.endpoint, files.trust())
            await node.next(Waiting)
            files.write(papers(OTHER))
            with pytest.raises(grpc.aio.AioRpcError):
                await status(there.endpoint, shown(papers(TOKEN)))
            await status(there.endpoint, shown(papers(OTHER)))
            async with open_channel(there.endpoint, (), files.trust()) as channel:
                ask: Any = channel.unary_unary(f"/{SERVICE}/Status")
                await ask(b"")
            (files.path / "cert").unlink()  # for a moment: the last ones go on
            await status(there.endpoint, shown(papers(OTHER)))
            assert node.events.empty()  # a connection that is there stays
            await node.link.close()

    run(test)


def test_the_name_in_a_certificate_of_ones_own_is_that_of_the_endpoint(files: Folder) -> None:
    async def test() -> None:
        async with door(files.trust()) as there:
            cert, key, ca = (str(files.path / name) for name in ("cert", "key", "ca"))
            node = Node(there.endpoint, FileTrust(cert, key, ca))
            assert await node.events.get() == LinkDown(Doubt.OTHER_CERTIFICATE.value)
            await node.link.close()
            assert there.is_untouched

    run(test)


def test_files_that_do_not_belong_together_are_refused(files: Folder) -> None:
    (files.path / "key").write_bytes(papers(TOKEN).key)
    with pytest.raises(UsageError, match="are not a certificate and its key"):
        files.trust()
    files.write(papers(TOKEN))
    (files.path / "ca").write_text("x")
    with pytest.raises(UsageError, match="has no certificate; right would be a PEM file"):
        files.trust()
    (files.path / "key").chmod(0o644)
    with pytest.raises(UsageError, match="is open to other users"):
        files.trust()
    (files.path / "cert").unlink()
    with pytest.raises(UsageError, match="No such file"):
        files.trust()
