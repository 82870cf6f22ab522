"""A real master behind a closed wire, its nodes, and a relay between them that keeps the bytes."""

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.master.link import LinkDown, LinkEvent
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Attend,
    JobSpec,
    NodeSpec,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.transport.channel_options import SERVICE
from ft_run.rendezvous.transport.client import GrpcLink
from ft_run.rendezvous.transport.server import MasterServer
from ft_run.rendezvous.trust.certificates import authority_key, certificate_of, issue
from ft_run.rendezvous.trust.credentials import Trust
from ft_run.rendezvous.trust.key_pair import WIRE_NAME, KeyPair
from ft_run.rendezvous.trust.token import new_token
from ft_run.tests.harness.link_events import plain

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
async def door(trust: Trust | None, silence_s: float = 5.0) -> AsyncIterator[Door]:
    master = Master(GroupSettings(node_grace_s=3600.0), lambda _: None)
    server = MasterServer(master, "1", silence_s, trust)
    port = await server.start(Endpoint("127.0.0.1", 0))
    try:
        yield Door(master, server, Endpoint("127.0.0.1", port))
    finally:
        await server.stop()


class Node:
    """An agent's end of a link."""

    def __init__(
        self,
        endpoint: Endpoint,
        trust: Trust | None,
        timeout_s: float = 60.0,
        silence_s: float = 5.0,
        master_timeout_s: float = 60.0,
    ) -> None:
        self.events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        self.left_s: list[float] = []
        """Of each ``LinkDown``, the seconds until the link gives up."""
        self.link = GrpcLink(
            endpoint,
            attend,
            self._note,
            silence_s=silence_s,
            connect_timeout_s=timeout_s,
            master_timeout_s=master_timeout_s,
            trust=trust,
        )

    def _note(self, event: LinkEvent) -> None:
        if isinstance(event, LinkDown):
            self.left_s.append(event.left_s)
        self.events.put_nowait(plain(event))

    async def next(self, kind: type) -> Any:
        while True:
            event = await self.events.get()
            if isinstance(event, kind):
                return event


def issued(begin: int, end: int) -> KeyPair:
    """Return a key and certificate of the job's own authority, valid in those years."""
    authority = authority_key(TOKEN)
    years = (datetime.datetime(year, 1, 1) for year in (begin, end))
    return issue(authority, certificate_of(authority), *years)


async def status(
    target: Endpoint, credentials: "grpc.ChannelCredentials | None", *, waits: bool = False
) -> Any:
    """Ask a master as a plain gRPC client does, which may wait until it gets a connection."""
    channel = (
        grpc.aio.insecure_channel(str(target), options=OWN[:1])
        if credentials is None
        else grpc.aio.secure_channel(str(target), credentials, options=OWN)
    )
    async with channel:
        ask: Any = channel.unary_unary(f"/{SERVICE}/Status")
        return pb.StatusReply.FromString(await ask(b"", timeout=TIMEOUT_S, wait_for_ready=waits))


def shown(mine: KeyPair, authority: bytes | None = None) -> "grpc.ChannelCredentials":
    return grpc.ssl_channel_credentials(authority or mine.authority, mine.key, mine.certificate)


class Recorder:
    """Passes bytes on between a node and a master, and keeps them."""

    def __init__(self, target: Endpoint) -> None:
        self._target = target
        self.said: list[bytes] = []
        self.answered: list[bytes] = []
        self.falls_silent = False
        """Nothing is passed on any more, and nothing is closed."""

    async def start(self) -> Endpoint:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to = await asyncio.open_connection(self._target.host, self._target.port)
            try:
                await asyncio.gather(
                    self._copy(reader, to, self.said), self._copy(there, writer, self.answered)
                )
            finally:
                to.close()
        finally:  # the end of the test may come first
            writer.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: list[bytes]
    ) -> None:
        while data := await reader.read(65536):
            if not self.falls_silent:
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


def client_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=WIRE_NAME).do_handshake()
    return outgoing.read()
