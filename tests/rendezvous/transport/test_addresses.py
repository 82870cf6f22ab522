"""Addresses of master hosts while the DNS does not answer."""

import asyncio
import socket
import threading
from typing import Any

import pytest
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.transport import addresses
from ft_run.rendezvous.transport.addresses import HostAddresses

POD = Endpoint("digits-1.digits", 29400)


class Dns:
    """A name server that answers, knows no name, or is silent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address: str | None = None
        self.is_silent = False
        self._answers = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)
        monkeypatch.setattr(addresses, "_LIMIT_S", 5.0)
        monkeypatch.setattr(addresses, "_KNOWN_LIMIT_S", 5.0)
        self._patch = monkeypatch

    def silence(self, *limits: str) -> None:
        """Answer nothing from now on."""
        self.is_silent = True
        for limit in limits:
            self._patch.setattr(addresses, limit, 0.05)

    def answer(self, address: str) -> None:
        """Answer the look-ups that wait."""
        self.address = address
        self._answers.set()

    def _look_up(self, host: str, port: int, **_: object) -> list[Any]:
        if host == "127.0.0.1":
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]
        if self.is_silent:
            self._answers.wait(60)
        if self.address is None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (self.address, port))]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    return Dns(monkeypatch)


@pytest.mark.parametrize("is_silent", [False, True])
def test_last_known_address_is_used_without_dns(dns: Dns, is_silent: bool) -> None:
    async def use(hosts: HostAddresses) -> None:
        dns.address = "10.0.0.1"
        assert await hosts.look_up(POD) == [(socket.AF_INET, ("10.0.0.1", 29400))]
        assert hosts.target(POD) == POD  # gRPC may look it up itself
        dns.address = None
        if is_silent:
            dns.silence("_KNOWN_LIMIT_S")
        assert await hosts.look_up(POD) == [(socket.AF_INET, ("10.0.0.1", 29400))]
        assert hosts.target(POD) == Endpoint("10.0.0.1", 29400)

    asyncio.run(use(HostAddresses()))


def test_late_answer_is_kept_for_the_next_attempt(
    dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(hosts: HostAddresses) -> None:
        late, take = asyncio.Event(), hosts._take

        def take_late(key: tuple[str, int], done: Any) -> None:
            take(key, done)
            late.set()

        dns.address = "10.0.0.1"
        await hosts.look_up(POD)
        dns.silence("_KNOWN_LIMIT_S")
        await hosts.look_up(POD)
        monkeypatch.setattr(hosts, "_take", take_late)
        dns.answer("10.0.0.2")
        await late.wait()
        assert hosts.target(POD) == POD
        dns.address = None
        assert await hosts.look_up(POD) == [(socket.AF_INET, ("10.0.0.2", 29400))]

    asyncio.run(use(HostAddresses()))


def test_unknown_name_has_no_address(dns: Dns) -> None:
    hosts = HostAddresses()
    assert asyncio.run(hosts.look_up(POD)) == []
    assert hosts.target(POD) == POD
    dns.silence("_LIMIT_S")
    assert asyncio.run(hosts.look_up(POD)) == []


@pytest.mark.parametrize(
    ("listens_at", "host"),
    [("::", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")],
)
def test_host_knows_itself_without_dns(dns: Dns, listens_at: str, host: str) -> None:
    hosts = HostAddresses()
    hosts.keep_own(POD, listens_at)
    assert asyncio.run(hosts.look_up(POD)) == [(socket.AF_INET, (host, 29400))]
    assert hosts.target(POD) == Endpoint(host, 29400)


def test_names_are_looked_up_until_each_is_known(dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(hosts: HostAddresses) -> None:
        monkeypatch.setattr(addresses, "_LEARN_AGAIN_S", 0.01)
        learning = asyncio.create_task(hosts.learn([POD]))
        await asyncio.sleep(0.05)
        dns.address = "10.0.0.1"
        await learning
        dns.address = None
        assert await hosts.look_up(POD) == [(socket.AF_INET, ("10.0.0.1", 29400))]

    asyncio.run(use(HostAddresses()))
