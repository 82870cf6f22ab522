"""Certificates of the user's own instead of a token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from ft_run.errors import UsageError
from ft_run.rendezvous.master.link import LinkDown
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import Waiting
from ft_run.rendezvous.transport.channel_options import SERVICE
from ft_run.rendezvous.trust import certificates
from ft_run.rendezvous.trust.certificates import key_pair
from ft_run.rendezvous.trust.credentials import FileTrust
from ft_run.rendezvous.trust.handshake_errors import HandshakeError
from ft_run.rendezvous.trust.key_pair import WIRE_NAME, KeyPair
from ft_run.rendezvous.trust.wire import open_channel
from ft_run.tests.harness.closed_wire import OTHER, TOKEN, Node, door, run, shown, status
from msgspec.structs import replace


class Folder:
    """Three files, as cert-manager leaves them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, mine: KeyPair) -> None:
        for name, data in (
            ("ca", mine.authority),
            ("cert", mine.certificate),
            ("key", mine.key),
        ):
            (self.path / name).write_bytes(data)
            (self.path / name).chmod(0o600)

    def trust(self) -> FileTrust:
        trust = FileTrust(*(str(self.path / name) for name in ("cert", "key", "ca")))
        trust.wire_name = WIRE_NAME  # as with a token
        return trust


@pytest.fixture
def files(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.write(key_pair(TOKEN))
    return folder


def test_certificates_of_ones_own_and_changed_ones_count_for_the_next_connection(
    files: Folder,
) -> None:
    async def test() -> None:
        async with door(files.trust()) as there:
            reply = await status(there.endpoint, shown(key_pair(TOKEN)))
            assert reply.phase == "waiting for nodes"
            node = Node(there.endpoint, files.trust())
            await node.next(Waiting)
            files.write(key_pair(OTHER))
            with pytest.raises(grpc.aio.AioRpcError):
                await status(there.endpoint, shown(key_pair(TOKEN)))
            await status(there.endpoint, shown(key_pair(OTHER)))
            async with open_channel(there.endpoint, (), files.trust()) as channel:
                ask: Any = channel.unary_unary(f"/{SERVICE}/Status")
                await ask(b"")
            last = files.trust()
            (files.path / "cert").unlink()  # for a moment: the last ones go on
            await status(there.endpoint, shown(key_pair(OTHER)))
            async with open_channel(there.endpoint, (), last) as channel:
                ask = channel.unary_unary(f"/{SERVICE}/Status")
                await ask(b"")
            while not node.events.empty():  # a connection that is there stays
                assert not isinstance(node.events.get_nowait(), LinkDown)
            await node.link.close()

    run(test)


def test_the_name_in_a_certificate_of_ones_own_is_that_of_the_endpoint(files: Folder) -> None:
    async def test() -> None:
        async with door(files.trust()) as there:
            cert, key, ca = (str(files.path / name) for name in ("cert", "key", "ca"))
            node = Node(there.endpoint, FileTrust(cert, key, ca))
            assert await node.events.get() == LinkDown(HandshakeError.OTHER_CERTIFICATE.words)
            await node.link.close()
            assert there.is_untouched

    run(test)


@pytest.mark.parametrize(
    "stranger",
    [
        lambda: None,
        lambda: grpc.ssl_channel_credentials(key_pair(TOKEN).authority),
        lambda: shown(key_pair(OTHER), key_pair(TOKEN).authority),
    ],
)
def test_who_has_no_certificate_of_the_authority_gets_no_answer(
    files: Folder, stranger: Callable[[], "grpc.ChannelCredentials | None"]
) -> None:
    async def test() -> None:
        async with door(files.trust()) as there:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await status(there.endpoint, stranger())
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert there.is_untouched

    run(test)


def test_a_node_without_a_certificate_is_told_that_the_master_wants_one(
    files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "WIRE_NAME", "node0.example")
    files.write(key_pair(TOKEN))

    async def test() -> None:
        async with door(files.trust()) as there:
            node = Node(there.endpoint, None)
            assert await node.events.get() == LinkDown(HandshakeError.WANTS_CERTIFICATE.words)
            await node.link.close()

    run(test)


def test_a_node_with_a_foreign_certificate_is_told_that_the_master_does_not_trust_it(
    files: Folder, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "WIRE_NAME", "localhost")
    files.write(key_pair(TOKEN))
    foreign = Folder(tmp_path_factory.mktemp("foreign"))
    foreign.write(replace(key_pair(OTHER), authority=key_pair(TOKEN).authority))
    trust = foreign.trust()
    trust.wire_name = None

    async def test() -> None:
        async with door(files.trust()) as there:
            node = Node(Endpoint("localhost", there.endpoint.port), trust)
            assert await node.events.get() == LinkDown(HandshakeError.NOT_TRUSTED.words)
            await node.link.close()
            assert there.is_untouched

    run(test)


def test_files_that_do_not_belong_together_are_refused(files: Folder) -> None:
    (files.path / "key").write_bytes(key_pair(TOKEN).key)
    with pytest.raises(UsageError, match="are not a certificate and its key"):
        files.trust()
    files.write(key_pair(TOKEN))
    (files.path / "ca").write_text("x")
    with pytest.raises(UsageError, match="has no certificate; expected a PEM file"):
        files.trust()
    (files.path / "key").chmod(0o644)
    with pytest.raises(UsageError, match="is accessible to other users"):
        files.trust()
    (files.path / "cert").unlink()
    with pytest.raises(UsageError, match="No such file"):
        files.trust()
