"""Tests of addresses of this host, and of ports that no other process can take."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.machine import network
from ft_run.launcher.machine.network import (
    AdvertisedAddress,
    PortReservation,
)
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.tests.harness.ports import free_port

FOREIGN = "198.51.100.1"  # of a block for documentation: no host has it


def listen_address(endpoint: Endpoint) -> Endpoint | None:
    own, _ = network.own_endpoints([endpoint])
    return own.get(0)


@pytest.mark.parametrize(
    ("text", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), (FOREIGN, False), ("2001:db8::1", False)],
)
def test_local_addresses(text: str, local: bool) -> None:
    assert network.is_local_address(text) is local


def test_a_name_that_does_not_resolve_has_no_addresses() -> None:
    assert network.resolve("no-such-host.invalid") == []
    assert network.resolve("a..b") == network.resolve("x" * 64) == []
    assert network.resolve("127.0.0.1") == ["127.0.0.1"]


def test_a_literal_address_is_listened_at_and_no_other() -> None:
    assert listen_address(Endpoint("127.0.0.1", 5)) == Endpoint("127.0.0.1", 5)
    found = listen_address(Endpoint("localhost", 5))
    assert found in (Endpoint("127.0.0.1", 5), Endpoint("::1", 5))


def test_a_name_is_listened_at_on_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on Debian, where a host's own name is 127.0.1.1: no other host gets through to that.
    monkeypatch.setattr(network, "resolve", lambda _: ["127.0.1.1"])
    assert listen_address(Endpoint("myself", 5)) == Endpoint(network.any_address(), 5)


@pytest.mark.parametrize("host", [FOREIGN, "no-such-host.invalid"])
def test_another_host_is_not_listened_at(host: str) -> None:
    assert listen_address(Endpoint(host, 5)) is None


@pytest.mark.parametrize(
    ("name", "known", "is_own"),
    [
        ("digits-0.digits", [], True),
        ("digits-0.digits.default.svc", [], True),
        ("Digits-0.digits.", [], True),
        ("digits-0", [], True),
        ("digits-0.digits", [FOREIGN], True),  # the pod before had that address
        ("digits-0", [FOREIGN], False),  # a clone has the same short name
        ("digits-1.digits", [], False),
        ("digits-0.dig", [], False),
        ("digits-0.digits.other", [FOREIGN], False),
    ],
)
def test_a_pod_knows_its_name_before_the_dns_does(
    monkeypatch: pytest.MonkeyPatch, name: str, known: list[str], is_own: bool
) -> None:
    monkeypatch.setattr(network, "resolve", lambda _: known)
    monkeypatch.setattr(socket, "gethostname", lambda: "digits-0")
    monkeypatch.setattr(socket, "getfqdn", lambda: "digits-0.digits.default.svc.cluster.local")
    expected = Endpoint(network.any_address(), 5) if is_own else None
    assert listen_address(Endpoint(name, 5)) == expected


def test_the_advertised_address_is_that_of_the_route_to_a_host_that_may_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: dict[str, list[str]] = {}
    monkeypatch.setattr(network, "resolve", lambda host: names.get(host, []))
    monkeypatch.setattr(network, "is_local_address", {"127.0.0.1", "10.0.0.1"}.__contains__)
    monkeypatch.setattr(network, "_route_to", {"10.0.0.9": "10.0.0.1"}.get)
    own = AdvertisedAddress("gone", None, ["gone", "there"])
    assert own.find() == "127.0.0.1"  # as long as it knows of no other host
    names["there"] = ["10.0.0.9"]
    assert own.find() == "10.0.0.1"


def test_the_advertised_address_is_that_of_the_route_to_the_master() -> None:
    assert AdvertisedAddress(None, None).find() == "127.0.0.1"
    assert AdvertisedAddress("127.0.0.1", None).find() == "127.0.0.1"
    assert AdvertisedAddress("no-such-host.invalid", None).find() == "127.0.0.1"
    assert AdvertisedAddress("127.0.0.1", "127.0.0.2").find() == "127.0.0.2"
    assert AdvertisedAddress(None, FOREIGN).find() == FOREIGN  # translated, perhaps
    with pytest.raises(UsageError, match="neither an IP address nor a host name that resolves"):
        AdvertisedAddress(None, "no-such-host.invalid").find()


HERE = {"127.0.0.1", "127.0.1.1", "10.0.0.1", "10.0.2.15"}
ROUTES = {
    "127.0.1.1": "127.0.0.1",
    "0.0.0.0": "127.0.0.1",
    "10.0.0.1": "10.0.0.1",
    "10.0.0.9": "10.0.0.1",
    "10.0.2.15": "10.0.2.15",
    "192.0.2.1": "10.0.2.15",
}


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Play a host with two networks, of which other hosts reach one; return the known names."""
    names = {"myself": ["127.0.1.1"], "any": ["0.0.0.0"]}
    monkeypatch.setattr(network, "resolve", lambda host: names.get(host, []))
    names["127.0.0.1"] = ["127.0.0.1"]
    monkeypatch.setattr(network, "is_local_address", HERE.__contains__)
    monkeypatch.setattr(network, "_route_to", ROUTES.get)
    return names


@pytest.mark.usefixtures("own_names")
@pytest.mark.parametrize("host", ["myself", "any", "unknown"])
def test_loopback_is_not_advertised_if_other_hosts_can_join(host: str) -> None:
    assert AdvertisedAddress(host, None, is_open=True).find() == "10.0.2.15"
    assert AdvertisedAddress(host, "myself", is_open=True).find() == "10.0.2.15"
    assert AdvertisedAddress(host, "127.0.0.1", is_open=True).find() == "127.0.0.1"
    assert AdvertisedAddress(host, None).find() == "127.0.0.1"


def test_route_to_a_second_master_host_is_used_if_the_first_one_is_this_host(
    own_names: dict[str, list[str]],
) -> None:
    own_names["there"] = ["10.0.0.9"]
    address = AdvertisedAddress("myself", None, ["myself", "gone", "there"], is_open=True)
    assert address.find() == "10.0.0.1"


@pytest.mark.usefixtures("own_names")
def test_route_to_the_first_other_node_is_advertised() -> None:
    address = AdvertisedAddress("myself", None, is_open=True)
    assert address.find() == "10.0.2.15"
    for useless in ("10.0.2.15", "127.0.0.1", "name", "a\0b", "", "198.51.100.7"):
        assert not address.meet(useless)
    assert address.meet("10.0.0.9")
    assert address.find() == "10.0.0.1"
    assert not address.meet("10.0.0.9")
    closed = AdvertisedAddress("myself", None)
    closed.find()
    assert not closed.meet("10.0.0.9")


def test_own_name_that_becomes_known_is_advertised(own_names: dict[str, list[str]]) -> None:
    address = AdvertisedAddress("pod", None, is_open=True)
    assert address.find() == "10.0.2.15"
    own_names["pod"] = ["10.0.0.1"]
    assert address.find() == "10.0.0.1"


@pytest.mark.parametrize(
    ("host", "is_reachable"),
    [("localhost", False), ("127.0.1.1", False), ("::1", False), ("a", True), ("10.0.0.1", True)],
)
def test_hosts_that_others_can_connect_to(host: str, is_reachable: bool) -> None:
    assert network.names_all_hosts(host) is is_reachable


def test_first_network_is_used_without_a_default_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_neighbors", lambda: ["10.0.0.2"])
    monkeypatch.setattr(network, "_route_to", {"10.0.0.2": "10.0.0.1"}.get)
    monkeypatch.setattr(network, "_own_ipv6", lambda: ["2001:db8::5"])
    assert network._outward_address() == "10.0.0.1"
    monkeypatch.setattr(network, "_neighbors", list)
    assert network._outward_address() == "2001:db8::5"


def test_own_endpoints_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"myself": ["127.0.1.1"], "other": [FOREIGN]}
    monkeypatch.setattr(network, "resolve", lambda host: names.get(host, []))
    everywhere = Endpoint(network.any_address(), 5)
    endpoints = [Endpoint(name, 5) for name in ("other", "myself", "unknown")]
    assert network.own_endpoints(endpoints) == ({1: everywhere}, False)
    assert network.own_endpoints(endpoints[:2]) == ({1: everywhere}, True)
    assert network.own_endpoints(endpoints[:1]) == ({}, True)


def test_an_address_is_found_anew_when_the_host_has_it_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = {"10.0.0.1"}
    routed: list[str | None] = ["10.0.0.1"]
    asked: list[str] = []

    def resolve(host: str) -> list[str]:
        asked.append(host)
        return ["10.0.0.9"]

    monkeypatch.setattr(network, "is_local_address", local.__contains__)
    monkeypatch.setattr(network, "_route_to", lambda _: routed[-1])
    monkeypatch.setattr(network, "resolve", resolve)
    own = AdvertisedAddress("master", None)
    assert own.find() == "10.0.0.1"
    routed.append("10.0.0.2")
    local.add("10.0.0.2")
    assert own.find() == "10.0.0.1", "it is still there"
    local.remove("10.0.0.1")
    with closing(PortReservation(own.find, None)) as reservation:
        assert reservation.renew().address == "10.0.0.2"
    local.clear()
    routed.append(None)
    assert own.find() == "10.0.0.2", "no network at all: perhaps it comes back"
    assert asked == ["master"], "no resolver is waited for while the job runs"


def test_local_addresses_go_before_others_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda _: [FOREIGN, "127.0.0.1"])
    assert AdvertisedAddress(None, "myself").find() == "127.0.0.1"


# --- ports ---------------------------------------------------------------------------------------


@pytest.fixture
def reservation() -> Iterator[PortReservation]:
    with closing(PortReservation(lambda: "127.0.0.1", None)) as reservation:
        yield reservation


def listen(port: int, *, reuse: bool) -> socket.socket:
    server = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)
    try:
        if reuse:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def test_the_store_can_listen_at_a_reserved_port(reservation: PortReservation) -> None:
    offer = reservation.offer
    assert offer.address == "127.0.0.1"
    with listen(offer.port, reuse=True), socket.create_connection(("127.0.0.1", offer.port), 5):
        pass


def test_a_reserved_port_is_given_to_no_other_process(reservation: PortReservation) -> None:
    with pytest.raises(OSError, match="in use") as error:
        listen(reservation.offer.port, reuse=False)
    assert error.value.errno == errno.EADDRINUSE
    others = []
    for _ in range(200):
        other = socket.socket()
        other.bind(("", 0))
        others.append(other)
    taken = {other.getsockname()[1] for other in others}
    for other in others:
        other.close()
    assert reservation.offer.port not in taken


def test_a_renewed_port_is_another(reservation: PortReservation) -> None:
    before = reservation.offer.port
    offer = reservation.renew()
    assert offer.port != before
    assert offer == reservation.offer


def test_a_range_of_ports_is_used_in_turn() -> None:
    first = free_port(2)
    with closing(PortReservation(lambda: "h", range(first, first + 2))) as reservation:
        assert reservation.offer.port == first
        assert reservation.renew().port == first + 1
        assert reservation.renew().port == first


def test_a_port_of_the_range_that_is_taken_is_passed_over() -> None:
    first = free_port(2)
    with listen(first, reuse=False):
        with closing(PortReservation(lambda: "h", range(first, first + 2))) as reservation:
            assert reservation.offer.port == first + 1
        with pytest.raises(UsageError, match=f"--worker-port {first}: no port of it is free"):
            PortReservation(lambda: "h", range(first, first + 1))
        with (
            listen(first + 1, reuse=False),
            pytest.raises(UsageError, match=f"{first}-{first + 1}"),
        ):
            PortReservation(lambda: "h", range(first, first + 2))


def test_the_only_port_is_renewed_in_place() -> None:
    first = free_port(2)
    with closing(PortReservation(lambda: "h", range(first, first + 1))) as reservation:
        assert reservation.renew().port == first


@pytest.mark.parametrize("ports", [1, 2])
def test_a_port_that_cannot_be_renewed_is_kept(ports: int) -> None:
    """Such as that of a store which survives SIGKILL: the node must say that its round is over."""
    first = free_port(2)
    with (
        closing(PortReservation(lambda: "h", range(first, first + ports))) as reservation,
        listen(first + 1, reuse=False),
        listen(first, reuse=True),
    ):
        for _ in range(2):
            assert reservation.renew() == reservation.offer
            assert reservation.offer.port == first


def test_no_descriptor_is_left_for_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(PortReservation(lambda: "h", None)) as reservation:
        before = reservation.offer

        def none_left(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(network, "_bound", none_left)
        assert reservation.renew() == before
