"""Whether anything listens at an endpoint."""

import asyncio
import socket
import threading
from typing import Any

import pytest
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.transport import addresses
from ft_run.rendezvous.transport.probe import why_unreachable
from ft_run.tests.harness.ports import free_port

V4, V6 = socket.AF_INET, socket.AF_INET6


def resolved_to(*addresses: tuple[int, str]) -> Any:
    def getaddrinfo(_: str, port: int, **__: object) -> list[Any]:
        return [(family, socket.SOCK_STREAM, 0, "", (host, port)) for family, host in addresses]

    return getaddrinfo


@pytest.mark.parametrize("addresses", [[(V4, "127.0.0.1")], [(V6, "::1"), (V4, "127.0.0.1")]])
def test_what_listens_at_one_address_of_a_name_is_found(
    monkeypatch: pytest.MonkeyPatch, addresses: list[tuple[int, str]]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolved_to(*addresses))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert asyncio.run(why_unreachable(Endpoint("name", port))) is None
    refused = asyncio.run(why_unreachable(Endpoint("name", free_port())))
    assert refused == "Connection refused"


@pytest.mark.parametrize("host", ["a..b", "nowhere.invalid"])
def test_a_name_that_does_not_resolve(host: str) -> None:
    assert asyncio.run(why_unreachable(Endpoint(host, 1))) == "DNS resolution failed"


def test_a_name_server_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by the probe, and not when the event loop ends."""
    answers = threading.Event()
    monkeypatch.setattr(addresses, "_LIMIT_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait() and [])
    assert asyncio.run(why_unreachable(Endpoint("name", 1))) == "DNS resolution failed"
    assert not answers.is_set()
    answers.set()


def test_without_a_thread_grpc_tries_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert asyncio.run(why_unreachable(Endpoint("127.0.0.1", 1))) is None
